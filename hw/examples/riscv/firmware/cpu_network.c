#include "cpu_network.h"

#include "system.h"

/* Two layers' values, in turns. */
static float values32[2][CPU_WIDEST] LOCAL;
static int8_t values8[2][CPU_WIDEST] LOCAL;

typedef union number {
    float value;
    uint32_t bits;
} number;

/* To the nearest bfloat16, ties to even; no value here is subnormal or a NaN. */
HOT static float round_value(float value)
{
    number one;

    one.value = value;
    one.bits = (one.bits + 0x7FFFu + (one.bits >> 16 & 1)) & 0xFFFF0000u;
    return one.value;
}

HOT static float relu(float value)
{
    number one;

    one.value = value;
    if (one.bits >> 31)
        one.bits = 0;
    return one.value;
}

/* The core's order: the bias, then input by input. */
HOT static float dot32(float sum, const float *values, const float *weights, uint32_t count)
{
    uint32_t i;

    for (i = 0; i < count; i++)
        sum += values[i] * weights[i];
    return sum;
}

HOT void run_binary32(const float *sample, float *results)
{
    const float *weights = cpu_weights32, *biases = cpu_biases32;
    uint32_t layer, i;

    for (i = 0; i < cpu_widths[0]; i++)
        values32[0][i] = round_value(sample[i]);
    for (layer = 0; layer < CPU_LAYERS; layer++) {
        const uint32_t inputs = cpu_widths[layer], outputs = cpu_widths[layer + 1];

        for (i = 0; i < outputs; i++) {
            float sum = dot32(*biases++, values32[layer & 1], weights, inputs);

            weights += inputs;
            if (cpu_relu[layer])
                sum = relu(sum);
            if (layer == CPU_LAYERS - 1)
                results[i] = sum;
            else
                values32[~layer & 1][i] = round_value(sum);
        }
    }
}

HOT static int32_t dot8(int32_t sum, const int8_t *values, const int8_t *weights, uint32_t count)
{
    uint32_t i;

    for (i = 0; i < count; i++)
        sum += values[i] * weights[i];
    return sum;
}

/* sum * multiplier / 2^31, rounded, from -127 to 127. */
HOT static int8_t scale(int32_t sum, int32_t multiplier)
{
    int32_t value = (int32_t)(((int64_t)sum * multiplier + (1 << 30)) >> 31);

    return (int8_t)(value > 127 ? 127 : value < -127 ? -127 : value);
}

HOT void run_integer(const int8_t *sample, int32_t *results)
{
    const int8_t *weights = cpu_weights8, *values = sample;
    const int32_t *biases = cpu_biases8;
    uint32_t layer, i;

    for (layer = 0; layer < CPU_LAYERS; layer++) {
        const uint32_t inputs = cpu_widths[layer], outputs = cpu_widths[layer + 1];

        for (i = 0; i < outputs; i++) {
            int32_t sum = dot8(*biases++, values, weights, inputs);

            weights += inputs;
            if (cpu_relu[layer] && sum < 0)
                sum = 0;
            if (layer == CPU_LAYERS - 1)
                results[i] = sum;
            else
                values8[layer & 1][i] = scale(sum, cpu_multipliers[layer]);
        }
        values = values8[layer & 1];
    }
}
