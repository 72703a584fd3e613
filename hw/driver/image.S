/* region MODEL: model.bin as an array of C, `extern const unsigned char model_image[]`. */
    .section .rodata
    .balign 4096
    .global model_image
model_image:
    .incbin "model.bin"
    .section .note.GNU-stack, "", %progbits
