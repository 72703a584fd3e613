/* The instruction set: codes, and the record of each opcode.
   Generated from hw/spec by `python -m amaranth_tpu.scripts.datasheet`. Do not edit. */

#ifndef CORE_ISA_H
#define CORE_ISA_H

#include "core_record.h"

#define OPCODES           17
#define TABLE_WORDS       8192
#define TABLE_BINADES     16
#define EXPONENT_NEVER    (-512)
#define EXPONENT_ALWAYS   255
#define QUEUE_DEPTH       4
#define READY_PASSES      3
#define WEIGHT_BUFFER     128
#define MOST_IN_FLIGHT    32
#define MOST_CORES        8
#define WRITABLE_REGIONS  0xC
#define SQUARE_SHIFT      10
#define SEGMENT_BITS      5
#define DISTANCE_BITS     19
#define DISTANCE_FRACTION 12
#define EXPONENT_FRACTION 12
#define LOG2_E            189097
#define LOG2_E_FRACTION   17
#define RESULT_EXPONENT   142

enum { UNIT_LOAD, UNIT_WEIGHTS, UNIT_STORE, UNIT_MATMUL, UNIT_ACTIVATE, UNIT_CONTROL, UNIT_RING, UNITS };
enum { SPACE_BUFFER, SPACE_ACC, SPACE_BIAS, SPACE_TABLE, SPACE_UPDATE, SPACES };
enum { FUNCTION_NONE = 0, FUNCTION_RELU = 1, FUNCTION_TABLE = 2 };
enum { FORMAT_BFLOAT16 = 0, FORMAT_BINARY32 = 1, FORMAT_PLANES = 2, FORMAT_INDEX = 3 };
enum { HALF_WHOLE = 0, HALF_UPPER = 1, HALF_LOWER = 2 };
enum { CONDITION_POSITIVE = 0, CONDITION_EQUAL = 1 };
enum { MODE_ALL_REDUCE = 0, MODE_REDUCE_SCATTER = 1, MODE_ALL_GATHER = 2 };
enum { WEIGHT_BFLOAT16 = 0, WEIGHT_MXFP8 = 1, WEIGHT_MXFP6 = 2, WEIGHT_MXFP4 = 3, WEIGHT_MXINT8 = 4 };
enum { OP_HALT = 1, OP_SYNC = 2, OP_LOAD = 16, OP_LOAD_BIAS = 17, OP_LOAD_WEIGHTS = 18, OP_STORE = 19,
    OP_STORE_UPDATE = 20, OP_MATMUL = 32, OP_ACTIVATE = 48, OP_POOL = 49, OP_SOFTMAX = 50, OP_MULTIPLY = 51,
    OP_LOAD_TABLE = 52, OP_SELECT = 53, OP_UPDATE = 54, OP_NORMALIZE = 55, OP_RING = 64 };
/* Fields of instructions. F_NONE: no field. */
enum { F_NONE, F_ACC, F_ACC_STRIDE, F_BASE, F_BIAS, F_BIAS_ROWS, F_BUFFER, F_BUFFER_STEP, F_BUFFER_STRIDE,
    F_CENTRED, F_CONDITION, F_EPSILON, F_FACTOR, F_FIRST, F_FORMAT, F_FUNCTION, F_HALF, F_KEEP, F_LANES,
    F_LINEAR_HIGH, F_LINEAR_LOW, F_MODE, F_MOMENTUM, F_NUMBER, F_OFFSET, F_OPERAND, F_OPERAND_STRIDE, F_PART,
    F_RATE, F_REGION, F_RESULT, F_ROOT, F_ROUNDS, F_ROWS, F_ROWS0, F_ROWS0_STRIDE, F_ROWS1, F_ROWS1_STRIDE, F_SCALE,
    F_SEGMENT, F_SPARE, F_START, F_STRIDE, F_TILES, F_TILES0, F_TILES0_ACC_STRIDE, F_TILES0_STRIDE, F_TILES1,
    F_TILES1_ACC_STRIDE, F_TILES1_STRIDE, F_TRANSPOSE, F_UPDATE, F_WEIGHT_FORMAT, F_WINDOW0, F_WINDOW0_STRIDE,
    F_WINDOW1, F_WINDOW1_STRIDE, F_WORD, FIELDS };

/* Fields: name, first bit, width, width without the feature, feature, count, most, codes, more codes, feature. */
static const core_record RECORDS[OPCODES] = {
    {.opcode = OP_HALT, .unit = UNIT_CONTROL, .needs = 0},
    {.opcode = OP_SYNC, .unit = UNIT_CONTROL, .needs = 0},
    {.opcode = OP_LOAD, .unit = UNIT_LOAD, .needs = 0,
     .transfer = READS_HOST, .vectors = 1, .half = F_NONE,
     .tiled = F_TRANSPOSE,
     .fields = 5,
     .field = {
            {F_REGION, 8, 2, 0, 0, 0, 0, 0xF, 0x0, 0},
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_OFFSET, 32, 32, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_TRANSPOSE, 10, 1, 0, TPU_FEATURES_TRANSPOSE_MASK, 0, 0, 0x0, 0x0, 0}},
     .spans = 1,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .writes = 1, .rows = {F_ROWS}}}},
    {.opcode = OP_LOAD_BIAS, .unit = UNIT_LOAD, .needs = 0,
     .transfer = READS_HOST, .vectors = 2, .half = F_HALF,
     .fields = 5,
     .field = {
            {F_REGION, 8, 2, 0, 0, 0, 0, 0xF, 0x0, 0},
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_OFFSET, 32, 32, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_HALF, 10, 2, 0, TPU_FEATURES_TRAINING_MASK, 0, 0, 0x7, 0x0, 0},
            {F_BIAS, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0}},
     .spans = 1,
     .span = {
            {.space = SPACE_BIAS, .base = F_BIAS, .times = 1, .writes = 1, .rows = {F_ROWS}}}},
    {.opcode = OP_LOAD_WEIGHTS, .unit = UNIT_WEIGHTS, .needs = 0,
     .transfer = READS_HOST, .vectors = 0, .half = F_NONE, .coded = F_WEIGHT_FORMAT,
     .fields = 5,
     .field = {
            {F_REGION, 8, 2, 0, 0, 0, 0, 0xF, 0x0, 0},
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_OFFSET, 32, 32, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_TRANSPOSE, 10, 1, 0, TPU_FEATURES_ATTENTION_MASK, 0, 0, 0x0, 0x0, 0},
            {F_WEIGHT_FORMAT, 11, 3, 0, TPU_FEATURES_WEIGHT_FORMATS_MASK, 0, 0, 0x1F, 0x0, 0}}},
    {.opcode = OP_STORE, .unit = UNIT_STORE, .needs = 0,
     .transfer = WRITES_HOST, .vectors = 1, .half = F_NONE,
     .fields = 4,
     .field = {
            {F_REGION, 8, 2, 0, 0, 0, 0, 0xF, 0x0, 0},
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_OFFSET, 32, 32, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0}},
     .spans = 1,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .rows = {F_ROWS}}}},
    {.opcode = OP_STORE_UPDATE, .unit = UNIT_STORE, .needs = TPU_FEATURES_UPDATE_LANES_MASK,
     .transfer = WRITES_HOST, .vectors = 1, .half = F_NONE,
     .fields = 5,
     .field = {
            {F_REGION, 8, 2, 0, 0, 0, 0, 0xF, 0x0, 0},
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_OFFSET, 32, 32, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_PART, 10, 2, 0, 0, 0, 0, 0xE, 0x0, 0},
            {F_UPDATE, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0}},
     .spans = 1,
     .span = {
            {.space = SPACE_UPDATE, .base = F_UPDATE, .times = 1, .rows = {F_ROWS}}}},
    {.opcode = OP_MATMUL, .unit = UNIT_MATMUL, .needs = 0,
     .fields = 16,
     .field = {
            {F_START, 8, 1, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_KEEP, 9, 1, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BIAS_ROWS, 10, 1, 0, TPU_FEATURES_ATTENTION_MASK, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER, 16, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ROWS0, 32, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_ROWS0_STRIDE, 48, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ROWS1, 64, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_ROWS1_STRIDE, 80, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_TILES0, 96, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_TILES0_STRIDE, 112, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_TILES0_ACC_STRIDE, 128, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_TILES1, 144, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_TILES1_STRIDE, 160, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_TILES1_ACC_STRIDE, 176, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ACC, 192, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BIAS, 208, 16, 0, 0, 0, 0, 0x0, 0x0, 0}},
     .spans = 3,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .loops = {{F_ROWS0, F_ROWS0_STRIDE}, {F_ROWS1,
             F_ROWS1_STRIDE}, {F_TILES0, F_TILES0_STRIDE}, {F_TILES1, F_TILES1_STRIDE}}},
            {.space = SPACE_ACC, .base = F_ACC, .times = 1, .writes = 1, .rows = {F_ROWS0, F_ROWS1}, .loops = {{F_TILES0,
             F_TILES0_ACC_STRIDE}, {F_TILES1, F_TILES1_ACC_STRIDE}}},
            {.space = SPACE_BIAS, .base = F_BIAS, .times = 1, .rows = {F_TILES0}, .slide = {F_BIAS_ROWS, F_ROWS0, F_ROWS1},
             .only_if = F_START}}},
    {.opcode = OP_ACTIVATE, .unit = UNIT_ACTIVATE, .needs = 0,
     .fields = 6,
     .field = {
            {F_FUNCTION, 8, 4, 0, 0, 0, 0, 0x3, 0x4, TPU_FEATURES_TABLE_LANES_MASK},
            {F_FORMAT, 12, 2, 1, TPU_FEATURES_TRAINING_MASK, 0, 0, 0x3, 0x4, TPU_FEATURES_TRAINING_MASK},
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_LANES, 32, 8, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER, 48, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ACC, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0}},
     .spans = 2,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .writes = 1, .rows = {F_ROWS}, .tall = 1},
            {.space = SPACE_ACC, .base = F_ACC, .times = 1, .rows = {F_ROWS}}},
     .exclusions = 1, .excluded = {{{F_FUNCTION, F_FORMAT}, {2, 2}}}},
    {.opcode = OP_POOL, .unit = UNIT_ACTIVATE, .needs = TPU_FEATURES_POOLING_MASK,
     .fields = 15,
     .field = {
            {F_FUNCTION, 8, 4, 0, 0, 0, 0, 0x3, 0x4, TPU_FEATURES_TABLE_LANES_MASK},
            {F_FORMAT, 12, 2, 1, TPU_FEATURES_TRAINING_MASK, 0, 0, 0x3, 0x8, TPU_FEATURES_TRAINING_MASK},
            {F_ROWS0, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_LANES, 32, 8, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER, 48, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ACC, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ROWS0_STRIDE, 80, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ROWS1, 96, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_ROWS1_STRIDE, 112, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER_STRIDE, 128, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_WINDOW0, 144, 8, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_WINDOW0_STRIDE, 152, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_WINDOW1, 168, 8, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_WINDOW1_STRIDE, 176, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER_STEP, 192, 16, 0, TPU_FEATURES_TRAINING_MASK, 0, 0, 0x0, 0x0, 0}},
     .spans = 2,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .writes = 1, .rows = {F_ROWS0}, .loops = {{F_ROWS1,
             F_BUFFER_STRIDE}}, .tall = 1, .step = F_BUFFER_STEP},
            {.space = SPACE_ACC, .base = F_ACC, .times = 1, .loops = {{F_ROWS0, F_ROWS0_STRIDE}, {F_ROWS1, F_ROWS1_STRIDE},
             {F_WINDOW0, F_WINDOW0_STRIDE}, {F_WINDOW1, F_WINDOW1_STRIDE}}}},
     .exclusions = 1, .excluded = {{{F_FUNCTION, F_FORMAT}, {2, 3}}}},
    {.opcode = OP_SOFTMAX, .unit = UNIT_ACTIVATE, .needs = TPU_FEATURES_SOFTMAX_MASK,
     .fields = 8,
     .field = {
            {F_FORMAT, 12, 2, 1, TPU_FEATURES_TRAINING_MASK, 0, 0, 0x3, 0x0, 0},
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_LANES, 32, 8, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER, 48, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ACC, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_TILES, 80, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_ACC_STRIDE, 96, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER_STRIDE, 112, 16, 0, 0, 0, 0, 0x0, 0x0, 0}},
     .spans = 2,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .writes = 1, .rows = {F_ROWS}, .loops = {{F_TILES,
             F_BUFFER_STRIDE}}, .tall = 1},
            {.space = SPACE_ACC, .base = F_ACC, .times = 1, .rows = {F_ROWS}, .loops = {{F_TILES, F_ACC_STRIDE}}}}},
    {.opcode = OP_NORMALIZE, .unit = UNIT_ACTIVATE, .needs = TPU_FEATURES_NORMALIZE_MASK,
     .fields = 12,
     .field = {
            {F_CENTRED, 8, 1, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ROOT, 9, 1, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_FORMAT, 12, 2, 1, TPU_FEATURES_TRAINING_MASK, 0, 0, 0x3, 0x0, 0},
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_LANES, 32, 8, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER, 48, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ACC, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_TILES, 80, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_ACC_STRIDE, 96, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER_STRIDE, 112, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_FACTOR, 128, 24, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_EPSILON, 160, 24, 0, 0, 0, 0, 0x0, 0x0, 0}},
     .spans = 2,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .writes = 1, .rows = {F_ROWS}, .loops = {{F_TILES,
             F_BUFFER_STRIDE}}, .tall = 1},
            {.space = SPACE_ACC, .base = F_ACC, .times = 1, .rows = {F_ROWS}, .loops = {{F_TILES, F_ACC_STRIDE}}}}},
    {.opcode = OP_MULTIPLY, .unit = UNIT_ACTIVATE, .needs = TPU_FEATURES_TABLE_LANES_MASK,
     .fields = 5,
     .field = {
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_LANES, 32, 8, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER, 48, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ACC, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_OPERAND, 80, 16, 0, 0, 0, 0, 0x0, 0x0, 0}},
     .spans = 3,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .writes = 1, .rows = {F_ROWS}},
            {.space = SPACE_BUFFER, .base = F_OPERAND, .times = 1, .rows = {F_ROWS}},
            {.space = SPACE_ACC, .base = F_ACC, .times = 1, .rows = {F_ROWS}}}},
    {.opcode = OP_LOAD_TABLE, .unit = UNIT_ACTIVATE, .needs = TPU_FEATURES_TABLE_LANES_MASK,
     .fields = 9,
     .field = {
            {F_LINEAR_LOW, 8, 2, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_LINEAR_HIGH, 10, 2, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_SCALE, 14, 2, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_FIRST, 32, 8, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BASE, 40, 4, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_SPARE, 44, 4, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER, 48, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_WORD, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0}},
     .spans = 2,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .rows = {F_ROWS}},
            {.space = SPACE_TABLE, .base = F_WORD, .times = 1, .writes = 1, .rows = {F_ROWS}}}},
    {.opcode = OP_SELECT, .unit = UNIT_ACTIVATE, .needs = TPU_FEATURES_TRAINING_MASK,
     .fields = 12,
     .field = {
            {F_CONDITION, 8, 1, 0, 0, 0, 0, 0x3, 0x0, 0},
            {F_ROWS0, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_NUMBER, 32, 8, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER, 48, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ACC, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ROWS0_STRIDE, 80, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ROWS1, 96, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_ROWS1_STRIDE, 112, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER_STRIDE, 128, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_OPERAND, 144, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_OPERAND_STRIDE, 160, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BUFFER_STEP, 192, 16, 0, TPU_FEATURES_TRAINING_MASK, 0, 0, 0x0, 0x0, 0}},
     .spans = 3,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .writes = 1, .rows = {F_ROWS0}, .loops = {{F_ROWS1,
             F_BUFFER_STRIDE}}, .step = F_BUFFER_STEP},
            {.space = SPACE_BUFFER, .base = F_OPERAND, .times = 1, .rows = {F_ROWS0}, .loops = {{F_ROWS1, F_OPERAND_STRIDE}}},
            {.space = SPACE_ACC, .base = F_ACC, .times = 1, .loops = {{F_ROWS0, F_ROWS0_STRIDE}, {F_ROWS1, F_ROWS1_STRIDE}}}}},
    {.opcode = OP_UPDATE, .unit = UNIT_ACTIVATE, .needs = TPU_FEATURES_UPDATE_LANES_MASK,
     .fields = 6,
     .field = {
            {F_ROWS, 16, 16, 0, 0, 1, 0, 0x0, 0x0, 0},
            {F_UPDATE, 48, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ACC, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_MOMENTUM, 80, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_RATE, 96, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_BIAS, 208, 16, 0, 0, 0, 0, 0x0, 0x0, 0}},
     .spans = 3,
     .span = {
            {.space = SPACE_UPDATE, .base = F_UPDATE, .times = 1, .writes = 1, .rows = {F_ROWS}},
            {.space = SPACE_ACC, .base = F_ACC, .times = 1, .rows = {F_ROWS}},
            {.space = SPACE_BIAS, .base = F_BIAS, .times = 2, .rows = {F_ROWS}}}},
    {.opcode = OP_RING, .unit = UNIT_RING, .needs = TPU_FEATURES_RING_MASK,
     .fields = 6,
     .field = {
            {F_MODE, 8, 2, 0, 0, 0, 0, 0x7, 0x0, 0},
            {F_BUFFER, 16, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_RESULT, 32, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_SEGMENT, 48, 16, 0, 0, 1, 1, 0x0, 0x0, 0},
            {F_STRIDE, 64, 16, 0, 0, 0, 0, 0x0, 0x0, 0},
            {F_ROUNDS, 80, 16, 0, 0, 1, 0, 0x0, 0x0, 0}},
     .spans = 2,
     .span = {
            {.space = SPACE_BUFFER, .base = F_BUFFER, .times = 1, .rows = {F_SEGMENT}, .loops = {{F_ROUNDS, F_SEGMENT}}, .around
             = F_STRIDE, .around_modes = 0x3},
            {.space = SPACE_BUFFER, .base = F_RESULT, .times = 1, .writes = 1, .rows = {F_SEGMENT}, .loops = {{F_ROUNDS,
             F_SEGMENT}}, .around = F_STRIDE, .around_modes = 0x5}}},
};

/* Tables of SOFTMAX and NORMALIZE. */
static const uint32_t POWERS[16] = {
    65535, 62757, 60097, 57549, 55109, 52773, 50535, 48393, 46341, 44376, 42495, 40693, 38968, 37316, 35734, 34219};
static const uint32_t FINE_POWERS[16] = {
    65535, 65359, 65182, 65006, 64830, 64655, 64480, 64306, 64132, 63958, 63785, 63613, 63441, 63269, 63098, 62928};
static const uint32_t FINEST_LOSSES[16] = {
    0, 11, 22, 33, 43, 54, 65, 76, 87, 98, 109, 119, 130, 141, 152, 163};
static const uint32_t ROOTS[64] = {
    262132, 258131, 254307, 250648, 247143, 243781, 240552, 237449, 234462, 231585, 228812, 226136, 223552, 221054,
    218638, 216300, 214035, 211840, 209711, 207645, 205639, 203690, 201795, 199953, 198159, 196414, 194713, 193056,
    191440, 189865, 188328, 186827, 185356, 182526, 179822, 177235, 174757, 172379, 170096, 167902, 165790, 163756,
    161795, 159902, 158075, 156309, 154601, 152947, 151346, 149794, 148288, 146827, 145409, 144031, 142691, 141388,
    140120, 138885, 137683, 136511, 135369, 134255, 133168, 132107};
static const uint32_t SLOPES[64] = {
    4002, 3825, 3659, 3506, 3363, 3229, 3104, 2987, 2877, 2774, 2676, 2585, 2498, 2416, 2338, 2265, 2195, 2129, 2066,
    2006, 1949, 1895, 1843, 1793, 1746, 1701, 1657, 1616, 1576, 1537, 1501, 1465, 2830, 2704, 2588, 2479, 2378,
    2283, 2195, 2112, 2034, 1961, 1892, 1828, 1766, 1708, 1654, 1602, 1552, 1506, 1461, 1419, 1378, 1340, 1303,
    1268, 1235, 1203, 1172, 1142, 1114, 1087, 1061, 1036};

#endif
