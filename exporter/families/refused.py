"""Types of transformers 5.23.0 for language that are not supported, by the reason, in a user's
words: of each of its three lists (causal, masked, sequence to sequence) every type is here or in
the registry."""

from __future__ import annotations

_REASONS = {
    "its attention chooses keys by an indexer": "axk2 deepseek_v32 dots3_note dots3_note_text "
    "glm_moe_dsa minimax_m3_vl_text",
    "its cache is compressed along the text, and its residual stream is several": "deepseek_v4",
    "it has four residual streams that predict each other (AltUp), a branch of low rank (LAuReL), "
    "and activations of which the largest alone count: about 200 lines of C, some in the core": (
        "gemma3n gemma3n_text"
    ),
    "its attention is sparse by an indexer, and it has several residual streams": "hy_v4 qwen4_exp "
    "qwen4_exp_text",
    "its delta rule decays by channel within a bound, and its latent attention has gates: two knobs, "
    "about 30 lines of C": "bailing_hybrid",
    "it is Zamba 2 with Mamba-1 in its place, in several heads: about 30 lines of C": "zamba",
    "it has linear attention that decays by head": "minimax",
    "its recurrent layers are of a kind that the engine lacks": "rwkv xlstm",
    "it has differential attention": "diffllama",
    "it hides keys by numbers that it computes of values": "doge",
    "its attention chooses experts for queries": "jetmoe",
    "its attention is convolved and its router has layers of its own": "zaya",
    "its attention passes a short convolution and adds biases that depend on the query": (
        "inkling2_text inkling_text"
    ),
    "its values are narrower than its keys": "mimo_v2_flash",
    "it gates attention by softplus, and layers differ in their number of heads": "laguna",
    "it adds a bias to its router's logits before the sigmoid": "kolibri1",
    "its residual sums shrink with depth": "beam",
    "a layer has two attentions beside one mixture of experts, some of which do nothing": (
        "longcat_flash"
    ),
    "two stacks of layers run in turns, several times": "hrm_text",
    "it interleaves the positions of text and pictures": "cohere_compass_text",
    "it reads bytes in patches": "blt",
    "its positions are biases between segments of a text": "cpmant",
    "its attention is relative and in two streams": "prophetnet xlnet",
    "its attention is over hashed buckets": "reformer",
    "its attention is local or sparse": "bigbird_pegasus led longformer longt5 mra nystromformer "
    "pegasus_x yoso",
    "it has no attention": "fnet",
    "its attention adds two terms of relative positions, of queries and of keys: about 100 lines of C": (
        "deberta"
    ),
    "its attention is mixed with convolutions": "convbert",
    "its matrices are grouped convolutions": "squeezebert",
    "its text is pooled between layers": "funnel",
    "its layers are bottlenecks with norms that do not normalise": "mobilebert",
    "it computes in whole numbers": "ibert",
    "the head's width is not that of the embedding": "rembert ultrabert",
    "each language has layers of its own, and a text would have to say which": "xmod",
    "it scales embeddings by how many tokens are masked, and its tokens are amino acids": "esm",
    "its tokens are amino acids": "esmc",
    "it reads how characters look and sound": "roc_bert",
    "it reads where words lie on a page": "layoutlm tapas",
    "transformers 5.23.0 cannot run it, so nothing says what it computes": "flaubert",
    "transformers 5.23.0 has only two of its experts work, so nothing says what it computes": (
        "nllb-moe"
    ),
    "it drops tokens when many choose one expert": "switch_transformers",
    "its cross-attention has norms before and after": "t5gemma",
    "its decoder attends to itself and the source at once": "t5gemma2",
    "its encoder and decoder are models of other types": "encoder-decoder",
    "its draft model reads another model's states": "gemma4_assistant gemma4_unified_assistant",
    "its embedding has a low rank, and attention leaves out a token's own value": "neomme",
    "it is for pictures: the text model alone is of little use": "emu3 git modernvbert mllama "
    "perceiver trocr ultravbert",
    "it is for pictures and sounds, which have adapters in its layers": "phi4_multimodal",
    "it is for sounds: the text model alone is of little use": "granite_speech granite_speech_plus "
    "moshi moss_transcribe_diarize musicgen musicgen_melody nemo_speechlm qwen3_asr seamless_m4t "
    "seamless_m4t_v2 vibevoice_asr voxtral_realtime whisper",
}
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names.split()}
