// A program that links the library: prints its version, and how many layers a checkpoint has.
#include <heads.h>
#include <stdio.h>

int main(int argc, char **argv) {
    heads_error err;
    heads_model *model = heads_model_open(argv[argc - 1], &err);
    if (HEADS_VERSION_NUMBER < 100 || !model || heads_abi() != HEADS_ABI) return 1;
    printf("heads %s, %d layers\n", heads_version(), heads_model_shape(model).n_layers);
    heads_model_close(model);
    return 0;
}
