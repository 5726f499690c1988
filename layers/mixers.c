// Every mixer that a layer may have (docs/mixers.md says how to add one).
#include "engine.h"

const Mixer *const mixers[N_MIXERS] = {
    [MIXER_ATTENTION] = &attention_mixer,
    [MIXER_SHORTCONV] = &shortconv_mixer,
    [MIXER_DELTANET] = &deltanet_mixer,
    [MIXER_MAMBA2] = &mamba2_mixer,
    [MIXER_MAMBA1] = &mamba1_mixer,
    [MIXER_RGLRU] = &rglru_mixer,
};
