// The C driver with the verilated core: one batch of test vectors, twice.
//
//     bench FOLDER LIMIT [+plusarg=...]
//
// FOLDER has model.bin and samples.bin; found.bin is written there. Each line of the output is a step and what it returned.
// The CPU has a memory of its own: the driver's hook `fence` copies it to the core's before a run, and back after it.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "DRIVER/tpu.h"
#include "Vtop.h"
#include "verilated.h"

extern "C" const tpu_model* the_model(void);

double sc_time_stamp() { return 0; }

static Vtop* top;
static std::vector<uint64_t> memory(1 << 13);  // words of a beat
static bool started = false;

static void cycle() {
    top->clk = 1;
    top->eval();
    top->clk = 0;
    top->eval();
}

// One access: what is asked for holds until it is taken, and one answer comes back.
static uint32_t access(bool write, uint32_t offset, uint32_t value) {
    if (write) {
        top->s_axil_awaddr = offset;
        top->s_axil_wdata = value;
        top->s_axil_wstrb = 15;
        top->s_axil_awvalid = top->s_axil_wvalid = top->s_axil_bready = 1;
    } else {
        top->s_axil_araddr = offset;
        top->s_axil_arvalid = top->s_axil_rready = 1;
    }
    for (int i = 0; i < 1000; ++i) {
        top->eval();
        const bool aw = top->s_axil_awready, w = top->s_axil_wready, ar = top->s_axil_arready;
        const bool answer = write ? top->s_axil_bvalid : top->s_axil_rvalid;
        const uint32_t data = top->s_axil_rdata;
        cycle();
        if (aw) top->s_axil_awvalid = 0;
        if (w) top->s_axil_wvalid = 0;
        if (ar) top->s_axil_arvalid = 0;
        if (answer) {
            top->s_axil_bready = top->s_axil_rready = 0;
            return data;
        }
    }
    return 0xFFFFFFFF;
}

static uint32_t read_register(void*, uint32_t offset) { return access(false, offset, 0); }
static void write_register(void*, uint32_t offset, uint32_t value) { access(true, offset, value); }

static void wait(void*) {
    for (int i = 0; i < 100 && !top->irq; ++i) cycle();
}

static void fence(void*) {
    for (uint32_t word = 0; word < memory.size(); ++word) {
        top->bd_address = word;
        top->bd_wdata = memory[word];
        top->bd_write = !started;
        top->bd_read = started;
        cycle();
        if (started) memory[word] = top->bd_rdata;
    }
    top->bd_write = top->bd_read = 0;
    started = !started;
}

static std::vector<char> contents(const std::string& path) {
    std::vector<char> data(1 << 16);
    std::FILE* file = std::fopen(path.c_str(), "rb");
    if (!file) std::exit(2);
    data.resize(std::fread(data.data(), 1, data.size(), file));
    std::fclose(file);
    return data;
}

static enum tpu_error show(const char* step, enum tpu_error error) {
    std::printf("%s %d\n", step, int(error));
    return error;
}

int main(int argc, char** argv) {
    if (argc < 3) return 2;
    Verilated::commandArgs(argc, argv);
    auto simulated = std::make_unique<Vtop>();
    top = simulated.get();
    top->rst_n = 0;
    for (int i = 0; i < 4; ++i) cycle();
    top->rst_n = 1;
    cycle();

    const tpu_model* model = the_model();
    const std::string folder = argv[1];
    const uint32_t limit = std::strtoul(argv[2], nullptr, 10);
    const std::vector<char> image = contents(folder + "/model.bin"), samples = contents(folder + "/samples.bin");
    const tpu_places places = {0x0, 0x8000, 0xA000, 0xC000};
    char* bytes = reinterpret_cast<char*>(memory.data());
    std::copy(image.begin(), image.end(), bytes + places.model);

    tpu_port port = {nullptr, read_register, write_register, wait, fence};
    tpu core;
    show("open", tpu_open(&core, &port));
    show("check", tpu_check(&core, model));
    show("image", tpu_check_image(model, bytes + places.model));
    show("place", tpu_place(&core, model, &places));
    show("timeout", tpu_set_timeout(&core, 3000));
    tpu_clear_input(model, bytes + places.input);
    for (uint32_t sample = 0; sample < model->batch; ++sample)
        tpu_pack(model, bytes + places.input, sample, reinterpret_cast<const float*>(samples.data()) + sample * model->input_values);
    for (int round = 0; round < 2; ++round) {
        started = false;
        enum tpu_error error = show("run", tpu_run(&core, limit));
        if (error == TPU_ERROR_LIMIT) error = show("wait", tpu_wait(&core, 1000));
        std::printf("quiet %u\n", core.quiet);
        if (error) show("recover", tpu_recover(&core, 1000));
    }
    tpu_counters counters;
    tpu_read_counters(&core, &counters);
    uint32_t sum = counters.busy;
    for (uint32_t stall : counters.stall) sum += stall;
    std::printf("cycles %u\nsum %u\nprotocol %u\n", counters.cycles, sum, unsigned(top->errors));

    std::vector<float> found(model->batch * model->output_values);
    for (uint32_t sample = 0; sample < model->batch; ++sample)
        tpu_unpack(model, bytes + places.output, sample, found.data() + sample * model->output_values);
    std::FILE* file = std::fopen((folder + "/found.bin").c_str(), "wb");
    std::fwrite(found.data(), sizeof(float), found.size(), file);
    std::fclose(file);
    top->final();
    return 0;
}
