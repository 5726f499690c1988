// The model's stage: a piece of text -> ids, by BPE, Unigram or WordPiece.
#ifndef PIECES_H
#define PIECES_H

#include "text/vocabulary.h"

typedef struct {  // a text's ids, and the models' buffers; every array grows as needed
    const Tokenizer *t;
    int *ids;
    uint8_t *bytes;      // of a piece
    Symbol *symbols;     // of BPE
    uint64_t *heap;      // of possible merges
    UnigramNode *nodes;
    size_t n_ids, n_symbols;
    size_t ids_room, bytes_room, symbols_room, heap_room, nodes_room;
} Pieces;

// Both return false where there is no memory.
bool push_id(Pieces *p, int id);
// Adds the ids of a piece of n > 0 characters, or bytes if the model reads bytes.
bool encode_piece(Pieces *p, const uint32_t *units, size_t n);
// Frees all but the ids.
void free_pieces(Pieces *p);

#endif
