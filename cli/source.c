#include "source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "print.h"
#include "system/process.h"
#include "system/system.h"

enum { LONGEST = 4096 };  // bytes of a path

static bool is_gguf(const char *path) {
    char magic[4] = "";
    FILE *file = is_regular(path) ? open_to_read(path) : NULL;
    if (!file) return false;
    bool read = fread(magic, sizeof magic, 1, file) == 1;
    fclose(file);
    return read && memcmp(magic, "GGUF", sizeof magic) == 0;
}

// org/name, where no directory has the owner's name: that would be a mistyped path.
static bool is_hub_id(const char *name) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ_-.";
    char owner[LONGEST];
    const size_t n = strspn(name, letters);
    const size_t rest = name[n] == '/' ? strspn(name + n + 1, letters) : 0;
    if (!n || !rest || name[n + 1 + rest] || *name == '.' || name[n + 1] == '.') return false;
    const char *ending = strrchr(name, '.');
    if (ending && (!strcmp(ending, ".bin") || !strcmp(ending, ".gguf"))) return false;
    snprintf(owner, sizeof owner, "%.*s", (int)n, name);
    return is_missing(owner);
}

static bool is_source(const char *name) {
    return is_missing(name) ? is_hub_id(name) : is_folder(name) || is_gguf(name);
}

// export.py beside this program, in path[size].
static bool exporter_beside(char *path, size_t size) {
    if (own_path(path, size)) return false;
    path[base_name(path) - path] = 0;
    text_append(path, size, "export.py");
    return is_regular(path);
}

// Ends with 127 where the package is not installed, as a shell does without a program.
static const char INSTALLED[] = "import sys\n"
                                "try: from heads._export import main\n"
                                "except ImportError: sys.exit(127)\n"
                                "sys.exit(main(sys.argv[1:]))";

const char *find_checkpoint(const char *name) {
    static char found[LONGEST];
    char beside[LONGEST];
    if (!is_source(name)) return name;
    const char *python = getenv("HEADS_PYTHON");  // of the package that this program is in
    if (!python || !*python) python = PYTHON;
    const char *const here[] = {python, beside, name, "--cached", NULL};
    const char *const installed[] = {python, "-c", INSTALLED, name, "--cached", NULL};
    int status = run_command(exporter_beside(beside, sizeof beside) ? here : installed, found,
                             sizeof found);
    found[strcspn(found, "\r\n")] = 0;
    if (status == 0 && *found) return found;
    if (status > 0 && status != 127) exit(status);  // it has said why
    die("%s is no checkpoint; to make one of it, %s needs the package heads, or this program "
        "export.py beside it (python3 export.py %s OUT)", name, python, name);
}
