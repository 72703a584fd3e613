/* A bare-metal program: one sample through the network of model.h. README.md says how it is built. */

#include "model.h" /* by `tpu compile` */
#include "tpu.h"

#ifndef TPU_BASE
#define TPU_BASE 0x40000000u /* where the core's registers are */
#endif
#define LIMIT 1000000u /* looks at the status */

/* Regions begin on multiples of the bus beat, which is at most 128 bytes. */
#define REGION __attribute__((aligned(128)))
extern const unsigned char model_image[MODEL_IMAGE_BYTES]; /* model.bin: image.S */
static unsigned char input[MODEL_INPUT_BYTES] REGION;
static unsigned char output[MODEL_OUTPUT_BYTES] REGION;
static unsigned char scratch[MODEL_SCRATCH_BYTES + 1] REGION; /* may be 0 bytes, which C does not have */

static const tpu_port port = {(void *)(uintptr_t)TPU_BASE, 0, 0, 0, 0};
static tpu core;

enum tpu_error prepare(const tpu_port *to)
{
    const tpu_places places = {(uintptr_t)model_image, (uintptr_t)input, (uintptr_t)output, (uintptr_t)scratch};
    enum tpu_error error = tpu_open(&core, to);

    if (!error)
        error = tpu_recover(&core, LIMIT); /* whatever ran before */
    if (!error)
        error = tpu_check(&core, &model);
    if (!error)
        error = tpu_check_image(&model, model_image);
    if (!error)
        error = tpu_place(&core, &model, &places);
    if (!error)
        tpu_clear_input(&model, input);
    return error;
}

/* The number of the largest result goes to `answer`. */
enum tpu_error classify(const float sample[MODEL_INPUT_VALUES], uint32_t *answer)
{
    float results[MODEL_OUTPUT_VALUES];
    enum tpu_error error = tpu_pack(&model, input, 0, sample);

    if (!error)
        error = tpu_run(&core, LIMIT);
    if (error) {
        tpu_recover(&core, LIMIT); /* says itself if that does not help */
        return error;
    }
    tpu_unpack(&model, output, 0, results);
    *answer = tpu_largest(results, MODEL_OUTPUT_VALUES);
    return TPU_OK;
}

int main(void)
{
    static const float sample[MODEL_INPUT_VALUES] = {0.5f, 1.0f}; /* the others are 0 */
    uint32_t answer = 0;
    enum tpu_error error = prepare(&port);

    if (!error)
        error = classify(sample, &answer);
    return error ? -(int)error : (int)answer;
}
