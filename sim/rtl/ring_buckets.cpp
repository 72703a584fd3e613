// Verilated ring units in a ring, each with a memory, over links of any latency and with random stalls.
//
//     ring_buckets JOBS RESULTS
//
// JOBS is a sequence of buckets, in words of 32 bits: size, latency, stalls of links and of the port (per 256 cycles), cycles
// within which the cores start, seed, cycles without progress that count as a deadlock, rows, 8 words of the operation, then the
// rows of the memory of every core. RESULTS has for each bucket: cycles (all ones: deadlock), then for every core the vectors sent
// and received, reads and writes, then the memories.
//
// If the stalls of links exceed 256, the bits of the seed select the stalls: bit c * size + i stalls link i in cycle `start` + c.
// The field for the cycles within which the cores start then has `start`, and all cores start at once.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "Vtop.h"  // Verilator writes two underscores in names as ___05F
#include "verilated.h"

#include "bench_parts.h"

double sc_time_stamp() { return 0; }

struct Beat {
    uint64_t due;
    uint32_t data;
    uint8_t user;
    bool last;
};

struct Core {
    VerilatedContext context;
    Vtop top{&context};
    std::vector<uint32_t> memory;
    std::deque<Beat> link;  // beats in flight to this core
    uint32_t operand = 0, next = 0, start = 0;
    uint32_t sent = 0, received = 0, reads = 0, writes = 0;
    bool offered = false, started = false, done = false;

    Beat offer(uint64_t due) const {
        return {due, uint32_t(top.sent___05Ftdata), uint8_t(top.sent___05Ftuser), bool(top.sent___05Ftlast)};
    }

    void edge() {
        top.clk = 1;
        top.eval();
        top.clk = 0;
        top.eval();
    }
};

// Clears a ring after a deadlock or before a bucket: no run is active, and received beats are dropped.
static void clear(std::vector<std::unique_ptr<Core>>& cores, size_t size) {
    for (size_t i = 0; i < size; ++i) {
        Core& core = *cores[i];
        core.top.running = 0, core.top.position___05Fflush = 1, core.top.sent___05Ftready = 1, core.top.received___05Ftvalid = 0;
        core.top.port___05Fop___05Fvalid = 0;
        for (int cycle = 0; cycle < 20; ++cycle) core.edge();
        core.top.running = 1, core.top.position___05Fflush = 0;
        core.edge();
        core.link.clear();
        core.operand = core.sent = core.received = core.reads = core.writes = 0;
        core.offered = core.started = core.done = false;
    }
}

int main(int, char** argv) {
    File jobs{std::fopen(argv[1], "rb")};
    FILE* results = std::fopen(argv[2], "wb");
    if (!jobs.file || !results) return 1;
    std::vector<std::unique_ptr<Core>> cores;
    for (int i = 0; i < 8; ++i) {
        cores.push_back(std::make_unique<Core>());
        Core& core = *cores.back();
        core.top.rst = 1;
        core.edge();
        core.edge();
        core.top.rst = 0;
    }
    while (!jobs.ended()) {
        const uint32_t size = jobs.word(), latency = jobs.word(), stall = jobs.word(), busy = jobs.word(), late = jobs.word();
        state = 0x9E3779B97F4A7C15ull ^ jobs.word();
        const uint32_t limit = jobs.word(), rows = jobs.word();
        uint32_t operation[8];
        for (uint32_t& part : operation) part = jobs.word();
        const uint64_t pattern = state ^ 0x9E3779B97F4A7C15ull;
        const auto pauses = [&](uint64_t cycle, uint32_t link) {
            if (stall <= 256) return chance(stall);
            const uint64_t bit = (cycle - late) * size + link;
            return cycle >= late && bit < 32 && (pattern >> bit & 1);
        };
        clear(cores, size);
        for (uint32_t i = 0; i < size; ++i) {
            Core& core = *cores[i];
            core.memory.resize(rows);
            for (uint32_t& row : core.memory) row = jobs.word();
            core.start = stall > 256 ? 0 : draw() % (late + 1);
            core.top.position___05Frank = i, core.top.position___05Fsize = size;
            std::memcpy(&core.top.port___05Fop___05Fpayload, operation, sizeof core.top.port___05Fop___05Fpayload);
        }
        uint64_t now = 0, quiet = 0;
        bool ended = false;
        for (; !ended && quiet <= limit; ++now) {
            for (uint32_t i = 0; i < size; ++i) {
                Core& core = *cores[i];
                core.top.port___05Fop___05Fvalid = !core.started && now >= core.start;
                core.top.buffer___05Foperand = core.operand;
                core.top.buffer___05Fgrant = !chance(busy);
                core.top.eval();
            }
            for (uint32_t i = 0; i < size; ++i) {  // the link from core i to the next one
                Core &from = *cores[i], &to = *cores[(i + 1) % size];
                if (latency == 0 && to.link.empty() && from.top.sent___05Ftvalid)
                    to.link.push_back(from.offer(now));
                to.offered = !to.link.empty() && to.link.front().due <= now && (to.offered || !pauses(now, i));
                to.top.received___05Ftvalid = to.offered;
                to.top.received___05Ftdata = to.offered ? to.link.front().data : draw();
                to.top.received___05Ftuser = to.offered ? to.link.front().user : draw();
                to.top.received___05Ftlast = to.offered ? to.link.front().last : draw() & 1;
                from.top.sent___05Ftready =
                    latency == 0 ? to.offered && to.top.received___05Ftready : to.link.size() <= latency && !pauses(now, i);
            }
            bool moved = false;
            for (uint32_t i = 0; i < size; ++i) {
                Core &core = *cores[i], &to = *cores[(i + 1) % size];
                core.top.eval();
                if (core.top.port___05Fop___05Fvalid && core.top.port___05Fop___05Fready) core.started = true;
                if (core.top.sent___05Ftvalid && core.top.sent___05Ftready) {
                    if (latency) to.link.push_back(core.offer(now + latency));
                    ++core.sent, moved = true;
                }
                core.next = core.operand;
                const uint32_t row = core.top.buffer___05Frow;
                if ((core.top.buffer___05Fread || core.top.buffer___05Fwrite) && core.top.buffer___05Fgrant) {
                    moved = true;
                    if (row >= rows) return std::fprintf(stderr, "row %u of %u\n", row, rows), 1;
                    if (core.top.buffer___05Fread) core.next = core.memory[row], ++core.reads;
                    else core.memory[row] = core.top.buffer___05Fvector, ++core.writes;
                }
                if (core.top.port___05Fdone) core.done = true;
                if (core.top.fault___05Fvalid) return std::fprintf(stderr, "a fault\n"), 1;
            }
            ended = true;
            for (uint32_t i = 0; i < size; ++i) {
                Core& core = *cores[i];
                if (core.offered && core.top.received___05Ftready) core.link.pop_front(), core.offered = false, ++core.received, moved = true;
                ended = ended && core.done;
            }
            for (uint32_t i = 0; i < size; ++i) cores[i]->edge(), cores[i]->operand = cores[i]->next;
            quiet = moved ? 0 : quiet + 1;
        }
        const uint32_t cycles = ended ? uint32_t(now - 1) : ~0u;
        std::fwrite(&cycles, 4, 1, results);
        for (uint32_t i = 0; i < size; ++i) {
            const uint32_t counts[] = {cores[i]->sent, cores[i]->received, cores[i]->reads, cores[i]->writes};
            std::fwrite(counts, 4, 4, results);
        }
        for (uint32_t i = 0; i < size; ++i) std::fwrite(cores[i]->memory.data(), 4, rows, results);
    }
    return std::fclose(results) != 0;
}
