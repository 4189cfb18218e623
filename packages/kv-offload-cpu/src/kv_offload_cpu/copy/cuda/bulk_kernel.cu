// The kernel that moves pages between tensors and slots by bulk copies, which a multiprocessor from Hopper on makes
// on its own: a thread asks for some kilobytes and waits until they are in shared memory. So what is under way is as
// much as that has room for, and not what fits into registers: two programs fill a link, and have enough under way for
// a link that is busy the other way, too.
//
// Each thread that has a buffer takes steps of its own, one after the other: into the buffer, and out of it. Threads
// share nothing, so nobody waits for another, but those of a warp, which go together; few of a warp have a buffer.
//
// A store waits until what it wrote has arrived before it fills its buffer anew, and not only until the buffer was
// read: a link that takes less than it is sent holds up all that the GPU writes, and the loads of others. So stores
// have no more under way than their buffers, which is just what the link takes.
//
// STEP_BYTES and LANES (the threads of a warp that have a buffer) are given to the compiler.

#include "job.h"

#ifdef PRIMITIVES
#include PRIMITIVES
#else

using Place = unsigned;  // in shared memory

__device__ __forceinline__ Place place_of(const void* pointer) {
    return static_cast<Place>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void open_barrier(Place barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ void begin_to_fill(Place buffer, const char* source, unsigned num_bytes, Place barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(num_bytes) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(buffer),
        "l"(source), "r"(num_bytes), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void wait_until_filled(Place barrier, unsigned round) {
    unsigned done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done)
            : "r"(barrier), "r"(round & 1)
            : "memory");
}

__device__ __forceinline__ void begin_to_empty(char* target, Place buffer, unsigned num_bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(buffer),
                 "r"(num_bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ __forceinline__ void wait_until_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

__device__ __forceinline__ void wait_until_arrived() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

#endif

extern "C" __global__ void move_pages(const __grid_constant__ Job job) {
    extern __shared__ __align__(128) char room[];
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32, buffers = warps * LANES;
    if (lane >= LANES) return;
    const unsigned mine = threadIdx.x / 32 * LANES + lane;
    const Place buffer = place_of(room + mine * STEP_BYTES), barrier = place_of(room + buffers * STEP_BYTES + mine * 8);
    open_barrier(barrier);
    unsigned round = 0;
    for (unsigned item = blockIdx.x * buffers + mine; item < job.num_items; item += gridDim.x * buffers) {
        const Step step = step_of(job, item);
        if (job.is_store)
            wait_until_arrived();
        else
            wait_until_read();
        begin_to_fill(buffer, step.source, step.num_bytes, barrier);
        wait_until_filled(barrier, round++);
        begin_to_empty(step.target, buffer, step.num_bytes);
    }
    wait_until_arrived();
}
