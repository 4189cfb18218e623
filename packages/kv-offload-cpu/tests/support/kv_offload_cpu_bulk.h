// A multiprocessor that a compiler for hosts makes of the kernel of bulk copies: its threads run one after the other,
// and a bulk copy is made as early as it may be, or as late. Whatever a kernel leaves out to wait for shows in the
// bytes, or here as a problem.

#include <stdint.h>
#include <string.h>

#define __shared__
#define __align__(bytes)

extern "C" {
alignas(128) char room[256 << 10];
}

namespace {

struct Index {
    unsigned x;
};
Index threadIdx, blockIdx, blockDim, gridDim;

using Place = char*;
Place place_of(const void* pointer) { return static_cast<Place>(const_cast<void*>(pointer)); }

struct Move {
    char* target;
    const char* source;
    unsigned num_bytes;
    bool is_read;
    char read[STEP_BYTES];
};

struct Stretch {
    char* begin;
    char* end;
};

// What is asked of a run, and what it finds.
bool fills_early, empties_early;
unsigned shared_bytes;
const char* problem;
bool is_late_beside_a_fill;

// Of the block, and of its thread.
Stretch taken[1024];
unsigned num_taken;
Place opened;
bool is_filling;
Move filling;
unsigned rounds;
Move emptying[1024];
unsigned num_emptying;

void demand(bool is_so, const char* what) {
    if (!is_so && !problem) problem = what;
}

bool is_in_room(const char* begin, unsigned num_bytes) { return room <= begin && begin + num_bytes <= room + shared_bytes; }

void take(char* begin, unsigned num_bytes) {
    demand(is_in_room(begin, num_bytes), "beyond the room of the program");
    for (unsigned n = 0; n < num_taken; ++n)
        demand(begin + num_bytes <= taken[n].begin || taken[n].end <= begin, "two have the same place");
    demand(num_taken < 1024, "more places than can be counted");
    taken[num_taken++ % 1024] = {begin, begin + num_bytes};
}

bool is_even(const void* pointer, unsigned num_bytes) {
    return (reinterpret_cast<uintptr_t>(pointer) | num_bytes) % 16 == 0;
}

void open_barrier(Place barrier) {
    demand(reinterpret_cast<uintptr_t>(barrier) % 8 == 0, "a barrier at an odd address");
    take(barrier, 8);
    opened = barrier;
}

void fill() {
    memcpy(filling.target, filling.source, filling.num_bytes);
    is_filling = false;
    ++rounds;
}

void begin_to_fill(Place buffer, const char* source, unsigned num_bytes, Place barrier) {
    demand(barrier == opened && !is_filling, "a fill at the wrong barrier, or beside another");
    demand(is_even(buffer, 0) && is_even(source, num_bytes) && num_bytes > 0, "a fill that is no multiple of 16 bytes");
    demand(num_bytes <= STEP_BYTES, "a fill of more than the buffer");
    if (!rounds) take(buffer, STEP_BYTES);
    is_late_beside_a_fill |= num_emptying > 0;
    filling.target = buffer, filling.source = source, filling.num_bytes = num_bytes;
    is_filling = true;
    if (fills_early) fill();
}

void wait_until_filled(Place barrier, unsigned round) {
    demand(barrier == opened, "a wait at the wrong barrier");
    if ((rounds & 1) != (round & 1)) return;
    demand(is_filling, "a wait for nothing");
    if (is_filling) fill();
}

void wait_until_read() {
    for (Move* move = emptying; move < emptying + num_emptying; ++move) {
        if (!move->is_read) memcpy(move->read, move->source, move->num_bytes);
        move->is_read = true;
    }
}

void wait_until_arrived() {
    wait_until_read();
    for (Move* move = emptying; move < emptying + num_emptying; ++move)
        memcpy(move->target, move->read, move->num_bytes);
    num_emptying = 0;
}

void begin_to_empty(char* target, Place buffer, unsigned num_bytes) {
    demand(is_even(target, num_bytes) && num_bytes > 0, "a move that is no multiple of 16 bytes");
    demand(num_emptying < 1024, "more moves than can be counted");
    Move* move = emptying + num_emptying++ % 1024;
    move->target = target, move->source = buffer, move->num_bytes = num_bytes, move->is_read = false;
    if (empties_early) {
        // It has arrived, but nobody knows.
        wait_until_read();
        memcpy(target, move->read, num_bytes);
    }
}

}  // namespace

extern "C" void move_pages(const Job job);

// Run all threads of some programs; what was wrong, if anything was.
extern "C" const char* run(const Job* job, unsigned programs, unsigned threads, unsigned bytes, int early, int* is_late) {
    problem = nullptr;
    is_late_beside_a_fill = false;
    fills_early = early & 1;
    empties_early = early & 2;
    shared_bytes = bytes;
    demand(bytes <= sizeof room, "more room than there is");
    gridDim.x = programs;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < programs; ++blockIdx.x) {
        num_taken = 0;
        for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {
            opened = nullptr;
            is_filling = false;
            rounds = 0;
            num_emptying = 0;
            memset(room, 0xEE, bytes);
            move_pages(*job);
            demand(!is_filling && !num_emptying, "the end comes before what was begun");
        }
    }
    *is_late = is_late_beside_a_fill;
    return problem;
}
