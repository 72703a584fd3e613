/* Provokes the errors of the driver. Each call must return its own error within its limit, and the core must run again. */

#include "cpu_data.h"
#include "model.h"
#include "other/model.h" /* the same network for a core of another size */
#include "system.h"

#define POLLS 300u    /* looks of one wait at the core, each of 100 looks at its interrupt */
#define LIMIT 200000u /* cycles that any call may take */

extern unsigned char model_image[MODEL_IMAGE_BYTES];
static unsigned char input[MODEL_INPUT_BYTES] REGION;
static unsigned char output[MODEL_OUTPUT_BYTES] REGION;
static unsigned char scratch[MODEL_SCRATCH_BYTES + 1] REGION;

static const tpu_port port = {(void *)(uintptr_t)TPU_BASE, 0, 0, wait_for_core, empty_cache};
static tpu_places places;
static tpu core;
static uint32_t wrong, begun;

typedef struct entry {
    const char *what;
    enum tpu_error needed, found;
    uint32_t took;
} entry;

static entry log[32];
static uint32_t entries;

/* Records the result and the duration of a call. The serial line is too slow to print them at once. */
static void expect(const char *what, enum tpu_error needed, enum tpu_error found)
{
    entry *one = &log[entries++ & 31];

    one->took = cycles() - begun;
    one->what = what;
    one->needed = needed;
    one->found = found;
    begun = cycles();
}

static void show(void)
{
    const entry *one;

    for (one = log; one < log + entries; one++) {
        int right = one->found == one->needed && one->took < LIMIT;

        put_number(one->found, 2);
        put_text(right ? " after " : " WRONG after ");
        put_number(one->took, 6);
        put_text(" cycles  ");
        put_text(one->what);
        put_text(": ");
        put_text(tpu_text(one->found));
        put_text("\n");
        wrong += !right;
    }
    entries = 0;
    begun = cycles();
}

static void other_cores(void)
{
    static const tpu_port nowhere = {(void *)(uintptr_t)NOWHERE, 0, 0, 0, 0};
    static const tpu_port memory = {output, 0, 0, 0, 0};
    tpu_model changed = model;

    expect("no core: nobody answers", TPU_ERROR_NO_CORE, tpu_open(&core, &nowhere));
    expect("no core: memory in its place", TPU_ERROR_NO_CORE, tpu_open(&core, &memory));
    expect("the core", TPU_OK, tpu_open(&core, &port));
    expect("whatever ran before", TPU_OK, tpu_recover(&core, POLLS));
    expect("a network for another core", TPU_ERROR_CONFIGURATION, tpu_check(&core, &other));
    show();
    put_text("      n of the core ");
    put_number(core.found, 1);
    put_text(", of the network ");
    put_number(core.needed, 1);
    put_text("\n");
    wrong += core.found != MODEL_NEEDS_N || core.needed != OTHER_NEEDS_N;
    changed.batch++;
    begun = cycles();
    expect("a header that was changed", TPU_ERROR_HEADER, tpu_check(&core, &changed));
    expect("the network", TPU_OK, tpu_check(&core, &model));
    show();
}

static void arguments(void)
{
    tpu_places odd = places;
    float sample[MODEL_INPUT_VALUES];

    odd.input += 2;
    expect("a region off the bus beat", TPU_ERROR_ADDRESS, tpu_place(&core, &model, &odd));
    odd.input = odd.model;
    expect("regions that overlap", TPU_ERROR_ADDRESS, tpu_place(&core, &model, &odd));
    expect("a sample that a batch has not", TPU_ERROR_ARGUMENT, tpu_pack(&model, input, MODEL_BATCH, sample));
    expect("a region that is not", TPU_ERROR_ARGUMENT, tpu_place_region(&core, 4, 0, 0));
    expect("the regions", TPU_OK, tpu_place(&core, &model, &places));
    show();
}

static void limits(void)
{
    expect("start", TPU_OK, tpu_start(&core));
    expect("a limit of one look", TPU_ERROR_LIMIT, tpu_wait(&core, 0));
    expect("start once more", TPU_ERROR_BUSY, tpu_start(&core));
    expect("wait again", TPU_OK, tpu_wait(&core, POLLS));
    show();
}

/* A run that ends with a fault: the next one needs a recovery, and then is well. */
static void fault(const char *what, enum tpu_error error)
{
    begun = cycles();
    expect(what, error, tpu_run(&core, POLLS));
    expect("  start after it", TPU_ERROR_NOT_RECOVERED, tpu_start(&core));
    expect("  recover", TPU_OK, tpu_recover(&core, POLLS));
}

static void faults(void)
{
    const unsigned char opcode = model_image[0];

    model_image[0] = 0xFF;
    fault("an instruction that is not", TPU_ERROR_ILLEGAL);
    model_image[0] = opcode;
    tpu_place_region(&core, TPU_REGION_INPUT, places.input, MODEL_INPUT_BYTES / 2);
    fault("an input that is too small", TPU_ERROR_RANGE);
    tpu_place_region(&core, TPU_REGION_INPUT, BEYOND_RAM, MODEL_INPUT_BYTES);
    fault("an input beyond memory", TPU_ERROR_BUS_READ);
    tpu_place(&core, &model, &places);
    tpu_place_region(&core, TPU_REGION_OUTPUT, BEYOND_RAM, MODEL_OUTPUT_BYTES);
    fault("an output beyond memory", TPU_ERROR_BUS_WRITE);
    tpu_place(&core, &model, &places);
    tpu_set_timeout(&core, 4);
    fault("memory slower than the timeout", TPU_ERROR_TIMEOUT);
    tpu_set_timeout(&core, 1u << 20);
    show();
}

static void dead_bus(void)
{
    begun = cycles();
    detach(1);
    expect("a dead bus: start", TPU_ERROR_DEAD_BUS, tpu_start(&core));
    expect("a dead bus: recover", TPU_ERROR_DEAD_BUS, tpu_recover(&core, POLLS));
    expect("a dead bus: the network", TPU_ERROR_DEAD_BUS, tpu_check(&core, &model));
    detach(0);
    expect("it is back: start", TPU_OK, tpu_start(&core));
    detach(1);
    expect("it dies in a run", TPU_ERROR_DEAD_BUS, tpu_wait(&core, POLLS));
    detach(0);
    expect("it is back: recover", TPU_OK, tpu_recover(&core, POLLS));
    show();
}

int main(void)
{
    float results[MODEL_OUTPUT_VALUES];
    uint32_t sample;

    places.model = (uintptr_t)model_image;
    places.input = (uintptr_t)input;
    places.output = (uintptr_t)output;
    places.scratch = (uintptr_t)scratch;
    begun = cycles();
    other_cores();
    arguments();
    tpu_clear_input(&model, input);
    for (sample = 0; sample < MODEL_BATCH; sample++)
        tpu_pack(&model, input, sample, samples32 + sample * MODEL_INPUT_VALUES);
    begun = cycles();
    limits();
    faults();
    dead_bus();
    expect("a run after all that", TPU_OK, tpu_run(&core, POLLS));
    show();
    put_text("results");
    for (sample = 0; sample < MODEL_BATCH; sample++) {
        tpu_unpack(&model, output, sample, results);
        put_words(results, MODEL_OUTPUT_VALUES);
    }
    put_text("\n");
    return (int)wrong;
}
