"""How models/stories.bin and models/heads.bin are made. `make model` runs, in this order:

    pretrain.py     a model of the grammar's stories, from nothing
    generate.py     texts by a teacher (teacher.py, writer.py), from beginnings that people might
                    type (beginnings.py, words.py), in a small vocabulary (vocabulary.py)
    train.py        the bundled model, of both kinds of texts (shards.py, dataset.py); then, with
                    generate.py in between, of texts of its own that the teacher has read
    average.py      the mean of the models before and after that
    induction.py    the model of two layers whose heads have textbook roles
    dragons.py      an adapter of models/hf, by peft; `make model` leaves it out
    judge.py        asks the teacher how likely a model's texts are, and counts those that go round
                    in circles (loops.py)

Each may be stopped at any time and goes on when it is called again. recall.py says which words
pretrain.py and train.py count more. agreement.py judges names and pronouns. models/README.md says
what came of it.
"""
