// The kernel that moves pages between tensors and slots of a buffer, which are both in the device's memory, by
// ordinary loads and stores. It has a function for each width of words, and needs nothing that a device may lack.
//
// A warp has a part of a step, of which each of its threads moves a few words: it loads them all, then stores them,
// and ends. So a program keeps its place on a multiprocessor for a few round trips to memory, and whoever else
// wants one has it after that, however few multiprocessors the kernel found free.
//
// WORDS (those of a thread) is given to the compiler.

#include "job.h"

#ifdef PRIMITIVES
#include PRIMITIVES
#else

template <typename Word>
__device__ __forceinline__ Word load(const Word* source) {
    __builtin_assume(__isGlobal(source));
    return *source;
}

template <typename Word>
__device__ __forceinline__ void store(Word* target, Word word) {
    __builtin_assume(__isGlobal(target));
    *target = word;
}

#endif

struct __align__(16) Sixteen {
    unsigned parts[4];
};

template <typename Word>
__device__ __forceinline__ void move_part(const Job& job) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned item = blockIdx.x * (blockDim.x / 32) + warp;
    if (item >= job.num_items) return;
    const Step step = step_of(job, item);
    const Word* source = reinterpret_cast<const Word*>(step.source);
    Word* target = reinterpret_cast<Word*>(step.target);
    const unsigned first = blockIdx.y * 32 * WORDS + lane, end = step.num_bytes / sizeof(Word);
    Word words[WORDS];
#pragma unroll
    for (unsigned n = 0; n < WORDS; ++n)
        if (first + n * 32 < end) words[n] = load(source + first + n * 32);
#pragma unroll
    for (unsigned n = 0; n < WORDS; ++n)
        if (first + n * 32 < end) store(target + first + n * 32, words[n]);
}

extern "C" __global__ void move_pages_16(const Job job) { move_part<Sixteen>(job); }
extern "C" __global__ void move_pages_8(const Job job) { move_part<unsigned long long>(job); }
extern "C" __global__ void move_pages_4(const Job job) { move_part<unsigned>(job); }
extern "C" __global__ void move_pages_2(const Job job) { move_part<unsigned short>(job); }
extern "C" __global__ void move_pages_1(const Job job) { move_part<unsigned char>(job); }
