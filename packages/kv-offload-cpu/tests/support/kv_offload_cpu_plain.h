// A device that a compiler for hosts makes of the kernel for buffers: its threads run one after the other, and each
// word that one loads or stores is looked at.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define __align__(bytes) alignas(bytes)

namespace {

struct Index {
    unsigned x, y;
};
Index threadIdx, blockIdx, blockDim, gridDim;

struct Stretch {
    const char* begin;
    const char* end;
};

// What a run may touch, and what it finds.
const Stretch* places;
unsigned num_places;
const char* problem;
Stretch* stored;
unsigned num_stored, room;

// Of the thread.
unsigned loads, stores;

void demand(bool is_so, const char* what) {
    if (!is_so && !problem) problem = what;
}

bool is_there(const void* pointer, unsigned num_bytes) {
    const char* begin = static_cast<const char*>(pointer);
    for (unsigned n = 0; n < num_places; ++n)
        if (places[n].begin <= begin && begin + num_bytes <= places[n].end) return true;
    demand(false, "beyond all tensors and slots");
    return false;
}

template <typename Word>
Word load(const Word* source) {
    Word word{};
    demand(reinterpret_cast<uintptr_t>(source) % sizeof(Word) == 0, "a load at an odd address");
    demand(!stores, "a thread loads after it stored, so that less is under way");
    ++loads;
    if (is_there(source, sizeof(Word))) memcpy(&word, source, sizeof(Word));
    return word;
}

template <typename Word>
void store(Word* target, Word word) {
    demand(reinterpret_cast<uintptr_t>(target) % sizeof(Word) == 0, "a store at an odd address");
    ++stores;
    if (!is_there(target, sizeof(Word))) return;
    if (num_stored == room) {
        room = 2 * room + 1024;
        stored = static_cast<Stretch*>(realloc(stored, room * sizeof(Stretch)));
    }
    const char* begin = reinterpret_cast<const char*>(target);
    stored[num_stored++] = {begin, begin + sizeof(Word)};
    memcpy(target, &word, sizeof(Word));
}

int by_begin(const void* left, const void* right) {
    const char *one = static_cast<const Stretch*>(left)->begin, *other = static_cast<const Stretch*>(right)->begin;
    return (one > other) - (one < other);
}

}  // namespace

extern "C" {
void move_pages_16(const Job job);
void move_pages_8(const Job job);
void move_pages_4(const Job job);
void move_pages_2(const Job job);
void move_pages_1(const Job job);

// Run all threads of some programs, by the function for a width of words; what was wrong, if anything was.
const char* run(const Job* job, unsigned word, unsigned x, unsigned y, unsigned threads, const Stretch* may_touch,
                unsigned count) {
    problem = nullptr;
    places = may_touch, num_places = count;
    num_stored = 0;
    gridDim = {x, y}, blockDim = {threads, 1};
    for (blockIdx.y = 0; blockIdx.y < y; ++blockIdx.y)
        for (blockIdx.x = 0; blockIdx.x < x; ++blockIdx.x)
            for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {
                loads = stores = 0;
                if (word == 16) move_pages_16(*job);
                if (word == 8) move_pages_8(*job);
                if (word == 4) move_pages_4(*job);
                if (word == 2) move_pages_2(*job);
                if (word == 1) move_pages_1(*job);
                demand(loads == stores, "a thread loads what it doesn't store, or the reverse");
            }
    qsort(stored, num_stored, sizeof(Stretch), by_begin);
    for (unsigned n = 1; n < num_stored; ++n) demand(stored[n - 1].end <= stored[n].begin, "a word is stored twice");
    return problem;
}
}
