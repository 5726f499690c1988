// The guard of guesses: what texts cost with it, for guesses of any price, right however often,
// against texts without guesses and against the best number of guesses.
#include "library/guard.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Of the speed without guesses; where a guess takes longer than a pass, and nothing says so before
// it is made; of a server's texts. And of the best speed.
static const double LEAST = 0.98, LEAST_DEAR = 0.97, LEAST_SHARED = 0.99, SHARE_OF_BEST = 0.85;
enum { PROMPT = 50, SHORT = 80, TEXTS = 100, DEEPEST = 3 };

static double uniform(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

typedef struct {
    double price;     // of a guess, in passes
    double right[2];  // chances of the first, of each one after
    double reads;     // what a draft model takes to read a token; 0: there is none
    double first;     // what its first guess takes more, since all its weights are touched
    double noise;     // of the clock
} Case;

// Tokens a pass, of texts of n tokens each; shared: in a server, where texts know those before.
static double speed(const Case *c, int n, int most, bool shared) {
    double time = 0, given = 0, owed = 0;
    GuessCost none = {.before = c->reads > 0 ? c->price : 0}, cost = none;
    for (int text = 0; text < TEXTS; text++) {
        Guard guard = {.spare = owed};
        if (!shared) cost = none;
        int behind = PROMPT, made = 0;
        double first = c->first;
        time -= PROMPT * c->reads;  // which a text with a draft model takes in any case
        while (made < n) {
            int room = n - made - 1 < most ? n - made - 1 : most;
            int unread = c->reads > 0 ? behind : 0;
            int guesses = guard_rests(&cost) ? 0 : guard_most(&guard, &cost, 1, unread, room);
            int right = 0, reads = guesses ? unread : 0;
            double took = 1 + guesses * c->price + reads * c->reads + (guesses ? first : 0);
            if (guesses) first = 0;
            while (right < guesses && uniform() < c->right[right > 0]) right++;
            time += took;
            took *= 1 + c->noise * (2 * uniform() - 1);
            if (uniform() < c->noise / 10) took *= 8;
            guard_measure(&cost, guesses, reads, took);
            if (guesses) guard_learn(&guard, &cost, 1, guesses, right, 0);
            made += 1 + right;
            behind = guesses ? 1 + right : behind + 1;
        }
        given += made;
        if (shared) owed = guard.spare < 0 ? guard.spare : 0;
    }
    return given / time;
}

// With the best number of guesses in every pass.
static double best_speed(const Case *c, int most) {
    double best = 1, given = 1, chance = 1;
    for (int n = 1; n <= most; n++) {
        given += chance *= c->right[n > 1];
        if (given / (1 + n * c->price) > best) best = given / (1 + n * c->price);
    }
    return best;
}

static void check_case(const Case *c, int n, int most, bool shared) {
    bool large = c->reads > 0 && c->price >= 0.5;  // a draft model that is not asked
    double found = speed(c, n, most, shared), best = large ? 1 : best_speed(c, most);
    double least = shared ? LEAST_SHARED : c->price > 1 && !c->reads ? LEAST_DEAR : LEAST;
    if (found >= least && found >= SHARE_OF_BEST * best) return;
    printf("not ok: guesses of %.2f passes, %.2f and %.2f right, tokens read at %.3f, noise %.2f, "
           "up to %d in texts of %d: %.3f x, the best is %.3f\n", c->price, c->right[0],
           c->right[1], c->reads, c->noise, most, n, found, best);
    exit(1);
}

int main(void) {
    static const double prices[] = {0.1, 0.2, 0.4, 0.49, 0.6, 1.2};
    static const double rights[][2] = {{0, 0}, {0.3, 0.3}, {0.45, 0.3}, {0.6, 0.5}, {0.85, 0.7},
                                       {0.95, 0.1}, {0.95, 0.95}};
    int n_cases = 0;
    for (int p = 0; p < 6; p++)
        for (int r = 0; r < 7; r++)
            for (int more = 0; more < 12; more++, n_cases++) {
                bool draft = more & 1;
                Case c = {prices[p], {rights[r][0], rights[r][1]}, draft ? prices[p] / 10 : 0,
                          draft ? 2 * prices[p] : 0, more & 2 ? 0.05 : 0};
                check_case(&c, more & 4 ? draft ? 120 : 160 : 1000, more < 6 ? 1 : DEEPEST, false);
                if (!c.reads) check_case(&c, SHORT, DEEPEST, true);
            }
    printf("ok %d kinds of guesses\n", n_cases);
    return 0;
}
