/* Digits through the core and through the CPU: answers, cycles, and every result bit by bit. */

#include "cpu_network.h"
#include "model.h"
#include "system.h"

#define LIMIT 10000000u

extern const unsigned char model_image[MODEL_IMAGE_BYTES];
static unsigned char input[MODEL_INPUT_BYTES] REGION;
static unsigned char output[MODEL_OUTPUT_BYTES] REGION;
static unsigned char scratch[MODEL_SCRATCH_BYTES + 1] REGION;
static tpu core;

static void check(const char *step, enum tpu_error error)
{
    if (!error)
        return;
    put_text(step);
    put_text(": ");
    put_text(tpu_text(error));
    put_text("\n");
    end(error);
}

static uint32_t largest(const int32_t *values, uint32_t count)
{
    uint32_t i, best = 0;

    for (i = 1; i < count; i++)
        if (values[i] > values[best])
            best = i;
    return best;
}

/* Prints a line: unit, digit, its class, its cost if known, all results. */
static void show(const char *who, uint32_t digit, uint32_t answer, const uint32_t *cost, const void *results)
{
    put_text(who);
    put_text(" of digit ");
    put_number(digit, 1);
    put_text(": ");
    put_number(answer, 1);
    if (cost) {
        put_text(" in ");
        put_number(cost[0], 1);
        put_text(" cycles, ");
        put_number(cost[1], 1);
        put_text(" bytes moved");
    }
    put_text("; results");
    put_words(results, MODEL_OUTPUT_VALUES);
    put_text("\n");
}

static void run_core(void)
{
    float results[MODEL_OUTPUT_VALUES];
    tpu_counters counters;
    uint32_t begin = cycles(), packed, ran, digit;

    for (digit = 0; digit < MODEL_BATCH; digit++)
        check("tpu_pack", tpu_pack(&model, input, digit, samples32 + digit * MODEL_INPUT_VALUES));
    packed = cycles();
    check("tpu_run", tpu_run(&core, LIMIT));
    ran = cycles();
    for (digit = 0; digit < MODEL_BATCH; digit++) {
        check("tpu_unpack", tpu_unpack(&model, output, digit, results));
        show("core", digit, tpu_largest(results, MODEL_OUTPUT_VALUES), 0, results);
    }
    tpu_read_counters(&core, &counters);
    put_text("the core took ");
    put_number(counters.cycles, 1);
    put_text(" cycles for all of them, ");
    put_number((counters.read_beats + counters.write_beats) * core.bus_bytes, 1);
    put_text(" bytes moved; with the driver ");
    put_number(ran - packed, 1);
    put_text(", to pack them ");
    put_number(packed - begin, 1);
    put_text("\n");
}

static void run_cpu(uint32_t digit)
{
    float results[MODEL_OUTPUT_VALUES];
    int32_t sums[MODEL_OUTPUT_VALUES];
    uint32_t cost[2], begin = cycles(), bytes = bus_bytes();

    run_integer(samples8 + digit * MODEL_INPUT_VALUES, sums);
    cost[0] = cycles() - begin;
    cost[1] = bus_bytes() - bytes;
    show("CPU, integer,", digit, largest(sums, MODEL_OUTPUT_VALUES), cost, sums);
    begin = cycles();
    bytes = bus_bytes();
    run_binary32(samples32 + digit * MODEL_INPUT_VALUES, results);
    cost[0] = cycles() - begin;
    cost[1] = bus_bytes() - bytes;
    show("CPU, binary32,", digit, tpu_largest(results, MODEL_OUTPUT_VALUES), cost, results);
}

int main(void)
{
    static const tpu_port port = {(void *)(uintptr_t)TPU_BASE, 0, 0, wait_for_core, empty_cache};
    const tpu_places places = {(uintptr_t)model_image, (uintptr_t)input, (uintptr_t)output, (uintptr_t)scratch};
    uint32_t digit;

    check("tpu_open", tpu_open(&core, &port));
    check("tpu_recover", tpu_recover(&core, LIMIT));
    check("tpu_check", tpu_check(&core, &model));
    check("tpu_check_image", tpu_check_image(&model, model_image));
    check("tpu_place", tpu_place(&core, &model, &places));
    tpu_clear_input(&model, input);
    run_core();
    for (digit = 0; digit < MODEL_BATCH && digit < CPU_DIGITS; digit++)
        run_cpu(digit);
    return 0;
}
