# Completion for bash, installed by "make install". The options are those that --help lists.
_heads_run() {
    local word=${COMP_WORDS[COMP_CWORD]}
    if [[ ${COMP_WORDS[COMP_CWORD - 1]} == -ct[kv] ]]; then
        mapfile -t COMPREPLY < <(compgen -W "f32 f16 q8 q4" -- "$word")
    elif [[ $word == -* ]]; then
        local options
        options=$("$1" --help 2>/dev/null | sed -nE 's/^  (--?[a-z-]+)(, (--?[a-z-]+))? .*/\1 \3/p')
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
    fi
}
complete -o default -F _heads_run heads ./run
