/* The header, image and data of a network, without access to registers. See tpu.h.

   Memory shared with the core is accessed through volatile pointers. A compiler therefore keeps the order of these accesses and
   the accesses to registers, and does not replace them by memcpy or memset. */

#include "tpu.h"

/* --- CRC-32, as in zip and Ethernet, four bits at a time --- */

static uint32_t crc_byte(uint32_t crc, uint32_t byte)
{
    static const uint32_t table[16] = {
        0x00000000u, 0x1DB71064u, 0x3B6E20C8u, 0x26D930ACu, 0x76DC4190u, 0x6B6B51F4u, 0x4DB26158u, 0x5005713Cu,
        0xEDB88320u, 0xF00F9344u, 0xD6D6A3E8u, 0xCB61B38Cu, 0x9B64C2B0u, 0x86D3D2D4u, 0xA00AE278u, 0xBDBDF21Cu,
    };

    crc ^= byte;
    crc = crc >> 4 ^ table[crc & 15];
    return crc >> 4 ^ table[crc & 15];
}

static uint32_t crc_words(uint32_t crc, const uint32_t *words, uint32_t count)
{
    uint32_t i, shift;

    for (i = 0; i < count; i++)
        for (shift = 0; shift < 32; shift += 8)
            crc = crc_byte(crc, words[i] >> shift & 0xFF);
    return crc;
}

static uint32_t crc_tensor(uint32_t crc, const tpu_tensor *tensor)
{
    uint32_t i;

    crc = crc_words(crc, &tensor->rows, 1);
    crc = crc_words(crc, &tensor->chunk, 1);
    crc = crc_words(crc, &tensor->step, 1);
    crc = crc_words(crc, &tensor->copies, 1);
    for (i = 0; i < tensor->copies; i++) {
        const tpu_copy *copy = &tensor->copy[i];

        crc = crc_words(crc, &copy->value, 1);
        crc = crc_words(crc, &copy->place, 1);
        crc = crc_words(crc, copy->count, TPU_LOOPS);
        crc = crc_words(crc, copy->value_step, TPU_LOOPS);
        crc = crc_words(crc, copy->place_step, TPU_LOOPS);
    }
    return crc;
}

enum tpu_error tpu_check_header(const tpu_model *model)
{
    const tpu_needs *needs = &model->needs;
    const uint32_t words[] = {
        model->image_bytes,  model->image_crc,     model->input_bytes, model->output_bytes, model->scratch_bytes, model->batch,
        model->input_values, model->output_values, model->output_bits, model->last,         needs->version,       needs->n,
        needs->bus_bytes,    needs->in_flight,     needs->unified_buffer_depth,             needs->accumulator_depth,
        needs->bias_depth,   needs->weight_fifo_depth,                 needs->features,     model->input_rank,
        model->output_rank,  model->inputs,        model->outputs,
    };
    uint32_t crc = 0xFFFFFFFFu, i;
    const char *letter;

    for (letter = model->name; *letter; letter++)
        crc = crc_byte(crc, (unsigned char)*letter);
    crc = crc_words(crc, words, sizeof words / sizeof words[0]);
    crc = crc_words(crc, model->input_shape, model->input_rank);
    crc = crc_words(crc, model->output_shape, model->output_rank);
    for (i = 0; i < model->inputs; i++)
        crc = crc_tensor(crc, &model->input[i]);
    for (i = 0; i < model->outputs; i++)
        crc = crc_tensor(crc, &model->output[i]);
    return ~crc == model->header_crc ? TPU_OK : TPU_ERROR_HEADER;
}

enum tpu_error tpu_check_image(const tpu_model *model, const void *image)
{
    const volatile unsigned char *bytes = (const volatile unsigned char *)image;
    uint32_t crc = 0xFFFFFFFFu, i;

    for (i = 0; i < model->image_bytes; i++)
        crc = crc_byte(crc, bytes[i]);
    return ~crc == model->image_crc ? TPU_OK : TPU_ERROR_IMAGE;
}

/* --- Data --- */

typedef union number {
    float value;
    uint32_t bits;
} number;

/* Memory is little endian, also on a big-endian CPU. */
#if defined(__BYTE_ORDER__) && defined(__ORDER_BIG_ENDIAN__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define LITTLE16(word) ((uint16_t)((word) >> 8 | ((word)&0xFFu) << 8))
#define LITTLE32(word) ((word) >> 24 | ((word) >> 8 & 0xFF00u) | ((word)&0xFF00u) << 8 | (word) << 24)
#else
#define LITTLE16(word) ((uint16_t)(word))
#define LITTLE32(word) (word)
#endif

/* Returns the bits of the bfloat16 for the bits of a binary32. */
static uint32_t to_bfloat16(uint32_t bits)
{
    uint32_t size = bits & 0x7FFFFFFFu;

    if (size > 0x7F800000u)
        return 0x7FC0u;
    if (size < 0x00800000u)
        return bits >> 16 & 0x8000u;
    return (bits + 0x7FFFu + (bits >> 16 & 1)) >> 16;
}

/* The state of the outer loops of a copy: the start of its innermost loop. */
typedef struct rounds {
    uint32_t value, place, round[TPU_LOOPS];
} rounds;

static void begin(rounds *at, const tpu_copy *copy, uint32_t offset)
{
    uint32_t loop;

    at->value = copy->value;
    at->place = copy->place + offset;
    for (loop = 0; loop < TPU_LOOPS; loop++)
        at->round[loop] = 0;
}

/* Advances to the next innermost loop. Returns 0 after the last one. */
static int next(rounds *at, const tpu_copy *copy)
{
    uint32_t loop = TPU_LOOPS - 1;

    while (loop--) {
        at->value += copy->value_step[loop];
        at->place += copy->place_step[loop];
        if (++at->round[loop] < copy->count[loop])
            return 1;
        at->value -= copy->count[loop] * copy->value_step[loop];
        at->place -= copy->count[loop] * copy->place_step[loop];
        at->round[loop] = 0;
    }
    return 0;
}

static void pack_copy(const tpu_copy *copy, uint32_t offset, volatile uint16_t *region, const float *values)
{
    const uint32_t last = TPU_LOOPS - 1;
    uint32_t i, value, place;
    number one;
    rounds at;

    begin(&at, copy, offset);
    do {
        value = at.value;
        place = at.place;
        for (i = 0; i < copy->count[last]; i++) {
            one.value = values[value];
            region[place] = LITTLE16(to_bfloat16(one.bits));
            value += copy->value_step[last];
            place += copy->place_step[last];
        }
    } while (next(&at, copy));
}

static void unpack_copy(const tpu_copy *copy, uint32_t offset, const void *region, uint32_t bits, float *values)
{
    const uint32_t last = TPU_LOOPS - 1;
    const volatile uint16_t *halves = (const volatile uint16_t *)region;
    const volatile uint32_t *words = (const volatile uint32_t *)region;
    uint32_t i, value, place, word;
    number one;
    rounds at;

    begin(&at, copy, offset);
    do {
        value = at.value;
        place = at.place;
        for (i = 0; i < copy->count[last]; i++) {
            word = bits == 32 ? words[place] : halves[place];
            one.bits = bits == 32 ? LITTLE32(word) : (uint32_t)LITTLE16(word) << 16;
            values[value] = one.value;
            value += copy->value_step[last];
            place += copy->place_step[last];
        }
    } while (next(&at, copy));
}

static uint32_t offset_of(const tpu_tensor *tensor, uint32_t sample)
{
    return sample / tensor->rows * tensor->chunk + sample % tensor->rows * tensor->step;
}

void tpu_clear_input(const tpu_model *model, void *input)
{
    volatile uint32_t *words = (volatile uint32_t *)input;
    uint32_t i;

    for (i = 0; i < model->input_bytes / 4; i++)
        words[i] = 0;
}

enum tpu_error tpu_pack(const tpu_model *model, void *input, uint32_t sample, const float *values)
{
    uint32_t i, j;

    if (sample >= model->batch)
        return TPU_ERROR_ARGUMENT;
    for (i = 0; i < model->inputs; i++)
        for (j = 0; j < model->input[i].copies; j++)
            pack_copy(&model->input[i].copy[j], offset_of(&model->input[i], sample), (volatile uint16_t *)input, values);
    return TPU_OK;
}

enum tpu_error tpu_unpack(const tpu_model *model, const void *output, uint32_t sample, float *values)
{
    uint32_t i, j;

    if (sample >= model->batch)
        return TPU_ERROR_ARGUMENT;
    for (i = 0; i < model->outputs; i++)
        for (j = 0; j < model->output[i].copies; j++)
            unpack_copy(&model->output[i].copy[j], offset_of(&model->output[i], sample), output, model->output_bits, values);
    return TPU_OK;
}

uint32_t tpu_largest(const float *values, uint32_t count)
{
    uint32_t i, key, best = 0, largest = 0;
    number one;

    for (i = 0; i < count; i++) {
        one.value = values[i];
        if (one.bits == 0x80000000u)
            one.bits = 0;
        key = one.bits & 0x80000000u ? ~one.bits : one.bits | 0x80000000u;
        if (key > largest) {
            largest = key;
            best = i;
        }
    }
    return best;
}
