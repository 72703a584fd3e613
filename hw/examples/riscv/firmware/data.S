/* The arrays that cpu_data.h declares, from files. */
    .macro array name, file
    .balign 32
    .global \name
\name:
    .incbin "\file"
    .endm

    .section .rodata
    array cpu_weights32, "weights32.bin"
    array cpu_biases32, "biases32.bin"
    array cpu_weights8, "weights8.bin"
    array cpu_biases8, "biases8.bin"
    array samples32, "samples.bin"
    array samples8, "samples8.bin"
    .section .note.GNU-stack, "", %progbits
