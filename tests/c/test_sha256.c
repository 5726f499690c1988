// SHA-256 of the examples of FIPS 180-4 (csrc.nist.gov, "Examples with Intermediate Values") and of
// a million letters (RFC 6234), in pieces of all lengths.
#include <stdio.h>
#include <string.h>

#include "library/sha256.h"

static int failures;

static void check(const char *text, size_t repeat, size_t piece, const char *want) {
    char hex[SHA256_HEX];
    Sha256 s;
    size_t len = strlen(text);
    sha256_begin(&s);
    for (size_t i = 0; i < repeat; i++)
        for (size_t at = 0; at < len; at += piece)
            sha256_add(&s, text + at, piece < len - at ? piece : len - at);
    sha256_end(s, hex);
    if (strcmp(hex, want) == 0) return;
    printf("not ok %zu times \"%s\" by %zu: %s, expected %s\n", repeat, text, piece, hex, want);
    failures++;
}

int main(void) {
    static const char long_text[] =
        "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqr"
        "lmnopqrsmnopqrstnopqrstu";
    for (size_t piece = 1; piece < 130; piece++) {
        check("", 1, piece, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        check("abc", 1, piece, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        check("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, piece,
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        check(long_text, 1, piece,
              "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    }
    check("aaaaaaaaaa", 100000, 7,
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    if (!failures) printf("ok SHA-256 of the standard's examples\n");
    return failures > 0;
}
