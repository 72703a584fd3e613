// Verilated cores in a ring, each with a host that executes a script at its registers, and with a host memory that checks the
// rules of AXI4.
//
//     core_bench JOBS RESULTS COVERAGE
//
// The macros CORES, HAS_RING, HAS_COVERAGE, BUS_BYTES and VECTOR_BYTES precede this text. JOBS and RESULTS are sequences of words
// of 32 bits. sim/verification/bench.py writes the jobs and reads the results; it documents both.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "Vtop.h"
#include "verilated.h"
#include "verilated_cov.h"

#include "bench_parts.h"

double sc_time_stamp() { return 0; }

static uint64_t now = 0;
static unsigned violations = 0;

static void put(FILE* file, uint32_t value) { std::fwrite(&value, 4, 1, file); }

struct Segment {
    uint64_t address;
    bool reported;
    std::vector<uint8_t> bytes;
};

struct Burst {
    uint64_t address, due;
    uint32_t length, id;  // length: beats that follow the first one
    bool is_former = false;  // a write of the job before, which the memory of this job does not get
};

struct Beat {
    uint8_t data[BUS_BYTES];
    uint64_t strobe;
    bool last;
};

enum Command { WRITE, READ, WAIT, IDLE, RESET, POLL, BARRIER };
enum Channel { AW, W, B, AR, R, SENT, RECEIVED, CHANNELS };

struct Step {
    uint32_t kind, a, b;
};

struct Vector {
    uint64_t due;
    uint8_t data[VECTOR_BYTES], user;
    bool last;
};

struct Core {
    explicit Core(VerilatedContext* context) : top(context, "core") {}

    Vtop top;
    std::vector<Segment> segments;
    std::vector<Step> script;
    std::vector<uint32_t> reads;
    size_t step = 0;
    uint32_t waited = 0, stalls[CHANNELS] = {};
    bool address_waits = false, data_waits = false, answer_waits = false, is_write = false, in_access = false, for_nothing = false;
    bool at_barrier = false;

    // host memory
    uint32_t latency = 1, pause = 0, accepted = 0, hang_after = ~0u;
    uint64_t error_first = ~0ull, error_last = 0, silent_first = ~0ull, silent_last = 0;
    std::deque<Burst> reading, writing;
    std::deque<Beat> beats;
    size_t open = 0;  // bursts of `writing`, from the end on, without all their data
    bool was_quiet = false;  // this job's poll has found the bus without transfers of the job before
    bool r_offered = false, b_offered = false;
    uint8_t held[3][64] = {};  // AW, W and AR as offered in the last cycle
    bool is_held[3] = {};

    std::deque<Vector> link;  // to this core
    bool offered = false;

    void violation(const char* rule) {
        if (violations++ < 10) std::fprintf(stderr, "cycle %llu: %s\n", (unsigned long long)now, rule);
    }

    // ---- host memory

    uint8_t* place(uint64_t address) {
        for (Segment& segment : segments)
            if (address >= segment.address && address + BUS_BYTES <= segment.address + segment.bytes.size())
                return segment.bytes.data() + (address - segment.address);
        return nullptr;
    }

    uint32_t response(uint64_t address) {
        if (address <= error_last && address + BUS_BYTES > error_first) return 2;
        return place(address) ? 0 : 3;
    }

    uint64_t due(uint64_t address) {
        if (accepted++ >= hang_after || (address >= silent_first && address <= silent_last)) return ~0ull;
        return now + latency + (pause ? draw() % (latency + 1) : 0);
    }

    void clear_bus() {
        reading.clear(), writing.clear(), beats.clear();
        open = accepted = 0, r_offered = b_offered = false;
        forget_offers();
    }

    void forget_offers() { std::memset(is_held, 0, sizeof is_held); }

    void drive_memory() {
        top.m_axi_arready = reading.size() < 32 && !chance(pause);
        top.m_axi_awready = writing.size() < 16 && !chance(pause);
        top.m_axi_wready = beats.size() < 300 && !chance(pause);
        r_offered = r_offered || (!reading.empty() && reading.front().due <= now && !chance(pause));
        top.m_axi_rvalid = r_offered;
        if (r_offered) {
            const Burst& burst = reading.front();
            const uint32_t code = response(burst.address);
            if (code) std::memset(&top.m_axi_rdata, 0xDB, BUS_BYTES);
            else std::memcpy(&top.m_axi_rdata, place(burst.address), BUS_BYTES);
            top.m_axi_rid = burst.id, top.m_axi_rresp = code, top.m_axi_rlast = burst.length == 0;
        } else {
            const uint64_t noise = draw() * 0x100000001ull;
            std::memcpy(&top.m_axi_rdata, &noise, BUS_BYTES < 8 ? BUS_BYTES : 8);
            top.m_axi_rid = draw() & 1, top.m_axi_rresp = draw() & 3, top.m_axi_rlast = draw() & 1;
        }
        const bool whole = writing.size() > open;
        b_offered = b_offered || (whole && writing.front().due <= now && !chance(pause));
        top.m_axi_bvalid = b_offered;
        if (!b_offered) top.m_axi_bid = draw() & 1, top.m_axi_bresp = draw() & 3;
        else top.m_axi_bid = writing.front().id, top.m_axi_bresp = burst_response(writing.front());
    }

    uint32_t burst_response(const Burst& burst) {
        uint32_t code = 0;
        for (uint32_t beat = 0; beat <= burst.length; ++beat)
            if (const uint32_t one = response(burst.address + beat * BUS_BYTES)) code = one;
        return code;
    }

    // An offer must not change until it is accepted.
    template <typename... Parts> void hold(int channel, bool valid, bool ready, const char* rule, const Parts&... parts) {
        uint8_t text[64] = {};
        size_t length = 0;
        ((std::memcpy(text + length, &parts, sizeof parts), length += sizeof parts), ...);
        static_assert((sizeof(Parts) + ...) <= 64, "the payload of an offer");
        if (is_held[channel] && (!valid || std::memcmp(text, held[channel], 64))) violation(rule);
        is_held[channel] = valid && !ready;
        std::memcpy(held[channel], text, 64);
    }

    void check_burst(uint64_t address, uint32_t length, uint32_t size, uint32_t kind) {
        if (kind != 1) violation("burst type is not INCR");
        if (1u << size != BUS_BYTES) violation("beats are narrower than the bus");
        if ((address & 4095) + (length + 1) * BUS_BYTES > 4096) violation("burst crosses a 4 KiB boundary");
    }

    void sample_memory() {
        hold(0, top.m_axi_awvalid, top.m_axi_awready, "AW changed before AWREADY", top.m_axi_awaddr, top.m_axi_awlen, top.m_axi_awid,
             top.m_axi_awprot, top.m_axi_awcache);
        hold(1, top.m_axi_wvalid, top.m_axi_wready, "W changed before WREADY", top.m_axi_wdata, top.m_axi_wstrb, top.m_axi_wlast);
        hold(2, top.m_axi_arvalid, top.m_axi_arready, "AR changed before ARREADY", top.m_axi_araddr, top.m_axi_arlen, top.m_axi_arid);
        stalls[AW] += top.m_axi_awvalid && !top.m_axi_awready, stalls[W] += top.m_axi_wvalid && !top.m_axi_wready;
        stalls[AR] += top.m_axi_arvalid && !top.m_axi_arready, stalls[R] += top.m_axi_rvalid && !top.m_axi_rready;
        stalls[B] += top.m_axi_bvalid && !top.m_axi_bready;
        if (top.m_axi_rvalid && top.m_axi_rready) {
            r_offered = false;
            Burst& burst = reading.front();
            burst.address += BUS_BYTES;
            if (!burst.length--) reading.pop_front();
        }
        if (top.m_axi_bvalid && top.m_axi_bready) finish_write();
        if (top.m_axi_arvalid && top.m_axi_arready) {
            check_burst(top.m_axi_araddr, top.m_axi_arlen, top.m_axi_arsize, top.m_axi_arburst);
            reading.push_back({uint64_t(top.m_axi_araddr), due(top.m_axi_araddr), uint32_t(top.m_axi_arlen), uint32_t(top.m_axi_arid)});
        }
        if (top.m_axi_awvalid && top.m_axi_awready) {
            check_burst(top.m_axi_awaddr, top.m_axi_awlen, top.m_axi_awsize, top.m_axi_awburst);
            writing.push_back({uint64_t(top.m_axi_awaddr), due(top.m_axi_awaddr), uint32_t(top.m_axi_awlen), uint32_t(top.m_axi_awid),
                               !was_quiet});
            ++open;
        }
        if (top.m_axi_wvalid && top.m_axi_wready) {
            Beat beat{{}, uint64_t(top.m_axi_wstrb), bool(top.m_axi_wlast)};
            std::memcpy(beat.data, &top.m_axi_wdata, BUS_BYTES);
            beats.push_back(beat);
        }
        close_bursts();
    }

    // Counts the bursts whose data has arrived.
    void close_bursts() {
        size_t first = 0, burst = 0;
        for (; burst < writing.size(); ++burst) {
            const size_t length = writing[burst].length + 1;
            if (first + length > beats.size()) break;
            for (size_t beat = 0; beat < length; ++beat)
                if (beats[first + beat].last != (beat + 1 == length)) violation("WLAST at the wrong beat");
            first += length;
        }
        open = writing.size() - burst;
    }

    void finish_write() {
        b_offered = false;
        const Burst burst = writing.front();
        for (uint32_t beat = 0; beat <= burst.length; ++beat) {
            uint8_t* bytes = burst.is_former ? nullptr : place(burst.address + beat * BUS_BYTES);
            for (uint32_t lane = 0; lane < BUS_BYTES; ++lane)
                if (bytes && beats.front().strobe >> lane & 1) bytes[lane] = beats.front().data[lane];
            beats.pop_front();
        }
        writing.pop_front();
    }

    // ---- registers

    void begin_access(bool write, uint32_t offset, uint32_t value, uint32_t strobe) {
        in_access = true, is_write = write, address_waits = answer_waits = true, data_waits = write;
        if (write) top.s_axil_awaddr = offset, top.s_axil_wdata = value, top.s_axil_wstrb = strobe;
        else top.s_axil_araddr = offset;
    }

    void drive_registers() {
        const bool late = chance(pause);
        top.s_axil_awvalid = in_access && is_write && address_waits && (top.s_axil_awvalid || !late);
        top.s_axil_arvalid = in_access && !is_write && address_waits && (top.s_axil_arvalid || !late);
        top.s_axil_wvalid = in_access && is_write && data_waits && (top.s_axil_wvalid || !chance(pause));
        top.s_axil_bready = in_access && is_write && !chance(pause);
        top.s_axil_rready = in_access && !is_write && !chance(pause);
    }

    // Returns true when the access has ended.
    bool sample_registers(uint32_t& value) {
        if (!in_access) return false;
        if (is_write ? top.s_axil_awvalid && top.s_axil_awready : top.s_axil_arvalid && top.s_axil_arready) address_waits = false;
        if (top.s_axil_wvalid && top.s_axil_wready) data_waits = false;
        if (is_write ? top.s_axil_bvalid && top.s_axil_bready : top.s_axil_rvalid && top.s_axil_rready) answer_waits = false;
        value = top.s_axil_rdata;
        in_access = address_waits || data_waits || answer_waits;
        return !in_access;
    }

    // ---- the script

    bool ended() const { return step == script.size() && !in_access; }

    void next() { ++step, waited = 0; }

    void advance(bool all_at_barrier) {
        at_barrier = false;
        if (in_access || step == script.size()) return;
        const Step& one = script[step];
        switch (one.kind & 255) {
        case WRITE: begin_access(true, one.a, one.b, one.kind >> 8); break;
        case READ:
        case POLL: begin_access(false, one.a, 0, 0); break;
        case WAIT:
            if (top.irq || waited == one.a) reads.push_back(top.irq ? waited : ~0u), next();
            else if (++waited, chance(one.b)) for_nothing = true, begin_access(false, draw() & 0x1FC, 0, 0);
            break;
        case IDLE: waited == one.a ? next() : void(++waited); break;
        case RESET:  // b: the core alone, when no write is open
            if (waited || !one.b || !(open || beats.size() || top.m_axi_awvalid || top.m_axi_wvalid)) ++waited;
            top.aresetn = !waited;
            if (waited) forget_offers(), offered = offered && !link.empty();
            if (waited && !one.b) clear_bus(), link.clear(), offered = false;
            if (waited > one.a) top.aresetn = 1, next();
            break;
        case BARRIER:
            at_barrier = true;
            if (all_at_barrier) next();
        }
    }

    void accessed(uint32_t value) {
        if (for_nothing) return void(for_nothing = false);
        const Step& one = script[step];
        if (one.kind == POLL && !(value & one.b) && ++waited < 20000) return;
        if (one.kind == READ || one.kind == POLL) reads.push_back(value);
        was_quiet = was_quiet || one.kind == POLL;
        next();
    }
};

static void load(File& jobs, Core& core) {
    core.error_first = jobs.wide(), core.error_last = jobs.wide();
    core.silent_first = jobs.wide(), core.silent_last = jobs.wide(), core.hang_after = jobs.word();
    core.segments.resize(jobs.word());
    for (Segment& segment : core.segments) {
        segment.address = jobs.wide();
        const uint32_t bytes = jobs.word();
        segment.reported = jobs.word();
        segment.bytes.resize(bytes);
        for (uint32_t at = 0; at < bytes; at += 4) {
            const uint32_t word = jobs.word();
            std::memcpy(segment.bytes.data() + at, &word, 4);
        }
    }
    core.script.resize(jobs.word());
    for (Step& step : core.script) step.kind = jobs.word(), step.a = jobs.word(), step.b = jobs.word();
    core.step = core.waited = core.accepted = 0;
    core.was_quiet = false;
    for (Burst& burst : core.writing) burst.is_former = true;
    core.reads.clear();
    std::memset(core.stalls, 0, sizeof core.stalls);
}

int main(int, char** argv) {
    File jobs{std::fopen(argv[1], "rb")};
    FILE* results = std::fopen(argv[2], "wb");
    if (!jobs.file || !results) return 1;
    VerilatedContext context;
    std::vector<std::unique_ptr<Core>> cores;
    for (int i = 0; i < CORES; ++i) {
        cores.push_back(std::make_unique<Core>(&context));
        cores.back()->top.aresetn = 0;
    }
    while (!jobs.ended()) {
        state = 0x9E3779B97F4A7C15ull ^ jobs.word();
        const uint32_t latency = jobs.word(), pause = jobs.word(), link_latency = jobs.word();
        for (auto& core : cores) load(jobs, *core), core->latency = latency, core->pause = pause;
        for (bool ended = false; !ended; ++now) {
            bool all_at_barrier = true;
            for (auto& core : cores) all_at_barrier = all_at_barrier && core->at_barrier;
            for (auto& core : cores) {
                core->advance(all_at_barrier);
                core->drive_registers();
                core->drive_memory();
#if HAS_RING
                auto& in = core->link;
                core->offered = core->offered || (!in.empty() && in.front().due <= now && !chance(pause));
                core->top.s_axis_ring_tvalid = core->offered;
                if (core->offered) {
                    std::memcpy(&core->top.s_axis_ring_tdata, in.front().data, VECTOR_BYTES);
                    core->top.s_axis_ring_tuser = in.front().user, core->top.s_axis_ring_tlast = in.front().last;
                }
#endif
            }
#if HAS_RING
            for (int i = 0; i < CORES; ++i)
                cores[i]->top.m_axis_ring_tready = cores[(i + 1) % CORES]->link.size() <= link_latency && !chance(pause);
#endif
            for (auto& core : cores) core->top.aclk = 0, core->top.eval();
            for (int i = 0; i < CORES; ++i) {
                Core& core = *cores[i];
                core.sample_memory();
                uint32_t value = 0;
                if (core.sample_registers(value)) core.accessed(value);
#if HAS_RING
                core.stalls[SENT] += core.top.m_axis_ring_tvalid && !core.top.m_axis_ring_tready;
                core.stalls[RECEIVED] += core.offered && !core.top.s_axis_ring_tready;
                if (core.offered && core.top.s_axis_ring_tready) core.link.pop_front(), core.offered = false;
                if (core.top.aresetn && core.top.m_axis_ring_tvalid && core.top.m_axis_ring_tready) {
                    Vector vector{now + 1 + link_latency, {}, uint8_t(core.top.m_axis_ring_tuser), bool(core.top.m_axis_ring_tlast)};
                    std::memcpy(vector.data, &core.top.m_axis_ring_tdata, VECTOR_BYTES);
                    cores[(i + 1) % CORES]->link.push_back(vector);
                }
#endif
            }
            for (auto& core : cores) core->top.aclk = 1, core->top.eval();
            ended = true;
            for (auto& core : cores) ended = ended && core->ended();
        }
        for (auto& core : cores) {
            put(results, uint32_t(core->reads.size()));
            for (const uint32_t value : core->reads) put(results, value);
            for (const uint32_t count : core->stalls) put(results, count);
            for (const Segment& segment : core->segments)
                if (segment.reported) std::fwrite(segment.bytes.data(), 1, segment.bytes.size(), results);
        }
    }
#if HAS_COVERAGE
    context.coveragep()->write(argv[3]);
#endif
    std::fprintf(stderr, "%llu cycles, %u violations\n", (unsigned long long)now, violations);
    return std::fclose(results) || violations ? 3 : 0;
}
