// The verilated testbench clocked by a bare loop: the reference for the simulation speed of cocotb.
//
//     bare_clock SCRIPT FIRST LAST [+plusarg=...]
//
// SCRIPT has one access per line: "w offset value", "r offset", "i cycles" (wait for irq). The memory's words FIRST..LAST
// are dumped at the end. The last line of the output is a JSON object.

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "Vtop.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

static Vtop* top;

static void cycle() {
    top->clk = 1;
    top->eval();
    top->clk = 0;
    top->eval();
}

// An output may depend on inputs of the same cycle: settle before sampling, then clock.
static bool look(const CData& ready) {
    top->eval();
    return ready;
}

[[noreturn]] static void fail(const char* what) {
    std::printf("bare_clock: %s\n", what);
    std::exit(1);
}

static void write_register(unsigned offset, unsigned value) {
    top->s_axil_awaddr = offset;
    top->s_axil_wdata = value;
    top->s_axil_wstrb = 15;
    top->s_axil_awvalid = top->s_axil_wvalid = top->s_axil_bready = 1;
    for (int i = 0; i < 1000; ++i) {
        bool address = look(top->s_axil_awready) && top->s_axil_awvalid;
        bool data = top->s_axil_wready && top->s_axil_wvalid;
        bool answer = top->s_axil_bvalid;
        cycle();
        if (address) top->s_axil_awvalid = 0;
        if (data) top->s_axil_wvalid = 0;
        if (answer) {
            top->s_axil_bready = 0;
            return;
        }
    }
    fail("no answer to a write");
}

static void read_register(unsigned offset) {
    top->s_axil_araddr = offset;
    top->s_axil_arvalid = top->s_axil_rready = 1;
    for (int i = 0; i < 1000; ++i) {
        bool address = look(top->s_axil_arready) && top->s_axil_arvalid;
        bool answer = top->s_axil_rvalid;
        cycle();
        if (address) top->s_axil_arvalid = 0;
        if (answer) {
            top->s_axil_rready = 0;
            return;
        }
    }
    fail("no answer to a read");
}

static void interrupt(uint64_t cycles) {
    while (!top->irq && cycles--) cycle();
    if (!top->irq) fail("no interrupt");
}

int main(int argc, char** argv) {
    if (argc < 4) fail("usage: bare_clock SCRIPT FIRST LAST [+plusarg=...]");
    Verilated::commandArgs(argc, argv);
    auto model = std::make_unique<Vtop>();
    top = model.get();
    std::FILE* script = std::fopen(argv[1], "r");
    if (!script) fail("cannot open the script");

    top->rst_n = 0;
    for (int i = 0; i < 4; ++i) cycle();
    top->rst_n = 1;
    cycle();

    const auto started = std::chrono::steady_clock::now();
    const uint64_t first = top->cycle;
    char kind;
    uint64_t a, b;
    while (std::fscanf(script, " %c %" SCNu64, &kind, &a) == 2) {
        if (kind == 'w' && std::fscanf(script, "%" SCNu64, &b) == 1) write_register(a, b);
        else if (kind == 'r') read_register(a);
        else if (kind == 'i') interrupt(a);
        else fail("bad script");
    }
    const uint64_t cycles = top->cycle - first;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();

    top->bd_address = std::strtoul(argv[2], nullptr, 10);
    top->bd_last = std::strtoul(argv[3], nullptr, 10);
    top->bd_dump = 1;
    cycle();
    top->bd_dump = 0;
    std::printf("{\"simulated_cycles\": %" PRIu64 ", \"seconds\": %.6f, \"protocol_errors\": %u}\n", cycles, seconds,
                unsigned(top->errors));
    top->final();
    return 0;
}
