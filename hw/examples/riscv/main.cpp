// The clock and the reset of the bench, which ends by itself.

#include <memory>

#include "Vtop.h"
#include "verilated.h"

double sc_time_stamp() { return 0; }

int main(int argc, char** argv) {
    Verilated::commandArgs(argc, argv);
    auto top = std::make_unique<Vtop>();
    for (long cycle = 0; !Verilated::gotFinish(); ++cycle) {
        top->rst_n = cycle >= 4;
        top->clk = 1;
        top->eval();
        top->clk = 0;
        top->eval();
    }
    top->final();
    return 0;
}
