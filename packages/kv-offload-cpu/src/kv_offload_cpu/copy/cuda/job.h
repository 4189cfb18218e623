// What kernels are told of a job, and where a step of it begins and ends: see methods/page_table.py.

struct Job {
    const long long* table;  // a column each of blocks, slots and offsets, with num_rows each
    const long long* steps;  // five columns with num_steps each
    long long num_rows;
    long long begin;  // the first row
    unsigned num_items;  // steps of all pages
    unsigned num_steps;  // of a page
    int is_store;
};

struct Step {
    const char* source;
    char* target;
    unsigned num_bytes;
};

__device__ __forceinline__ Step step_of(const Job& job, unsigned item) {
    const unsigned page = item / job.num_steps, number = item % job.num_steps;
    const long long *row = job.table + job.begin + page, *step = job.steps + number;
    const long long block = row[0], slot = row[job.num_rows], offset = row[2 * job.num_rows];
    const long long address = step[0], stride = step[job.num_steps], place = step[2 * job.num_steps];
    const long long page_bytes = step[3 * job.num_steps];
    const unsigned num_bytes = static_cast<unsigned>(step[4 * job.num_steps]);
    char* in_tensor = reinterpret_cast<char*>(address + block * stride);
    char* in_slot = reinterpret_cast<char*>(slot + place + offset * page_bytes);
    if (job.is_store) return {in_tensor, in_slot, num_bytes};
    return {in_slot, in_tensor, num_bytes};
}
