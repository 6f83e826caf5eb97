# Sourced inside the Soft-RoCE guest by scripts/verbs/solo and scripts/verbs/pair: ranks as processes, and what became of them.
# BIN is the folder of the programs under test.

out=/tmp/out; mkdir -p $out
failures=0 port=29500
export TF_TP_ROCE_SOFT=1 TF_TP_BOOT_TIMEOUT=60 TF_TP_SECRET=$(printf '5e%.0s' $(seq 32))
declare -A pid=() env=()

# The three ends of a solo guest: two that see one side each, and a third one in between.
env[0]='TF_TP_HOST_ID=a TF_TP_ROCE_HCA=rxe_a0,rxe_a1'
env[1]='TF_TP_HOST_ID=b TF_TP_ROCE_HCA=rxe_b0,rxe_b1'
env[2]='TF_TP_HOST_ID=c'

# new NAME WORLD: a case begins.
new() { name=$1 world=$2 began=$SECONDS; port=$((port + 1)); pid=(); codes=''; }

# start RANK [VAR=VALUE...] -- ARGS: a rank in the background. BEFORE, where set, stands in front of it.
start() {
    local rank=$1 vars=(); shift
    while [ "$1" != -- ]; do vars+=("$1"); shift; done; shift
    env ${env[$rank]} TF_TP_WORLD=$world TF_TP_PORT=$port "${vars[@]}" ${BEFORE:-} "$BIN/tf-tp-test" "$@" --rank $rank \
        > $out/$name.$rank.out 2> $out/$name.$rank.err < /dev/null & pid[$rank]=$!
}

# all ARGS: every rank, and waits for all.
all() { local rank; for rank in $(seq 0 $((world - 1))); do start $rank -- "$@"; done; finish 600; }

# until_up SECONDS: waits until every rank has its wire.
until_up() {
    local rank turns=$(($1 * 5))
    for rank in $(seq 0 $((world - 1))); do
        until grep -q ' up: backend' $out/$name.$rank.err 2> /dev/null; do
            turns=$((turns - 1)); [ $turns -gt 0 ] || return 0
            kill -0 ${pid[$rank]} 2> /dev/null || return 0
            sleep 0.2
        done
    done
    sleep 1
}

# finish SECONDS: waits for the ranks; what is still there then is ended, and counts as `late`.
finish() {
    local rank code turns=$(($1 * 10))
    codes=''
    for rank in $(seq 0 $((world - 1))); do
        while kill -0 ${pid[$rank]} 2> /dev/null && [ $turns -gt 0 ]; do turns=$((turns - 1)); sleep 0.1; done
        if kill -0 ${pid[$rank]} 2> /dev/null; then
            kill -9 ${pid[$rank]}; wait ${pid[$rank]} 2> /dev/null; codes="$codes late"; continue
        fi
        code=0; wait ${pid[$rank]} 2> /dev/null || code=$?
        codes="$codes $code"
    done
    codes=${codes# }
}

# check CODES [PATTERN...]: the exit codes by rank, and what some rank must have said.
check() {
    local wanted=$1 wrong=''; shift
    [ "$codes" = "$wanted" ] || wrong="exit codes $codes, not $wanted"
    for pattern in "$@"; do
        grep -qE -- "$pattern" $out/$name.*.err $out/$name.*.out 2> /dev/null || wrong="$wrong; nobody said: $pattern"
    done
    if [ -z "$wrong" ]; then echo "passed: $name ($((SECONDS - began)) s)"; return; fi
    failures=$((failures + 1))
    echo "FAILED: $name: ${wrong#; }"
    for file in $out/$name.*.err; do tail -n 12 $file | sed "s|^|    ${file##*/}: |"; done
}

# nothing_left: no process, no shared memory, no queue pair of a user.
nothing_left() {
    local wrong=''
    name=nothing-left began=$SECONDS codes=0
    ! pidof tf-tp-test > /dev/null || wrong='processes'
    [ -z "$(ls /dev/shm)" ] || wrong="$wrong shared memory: $(ls /dev/shm)"
    ! rdma resource show qp | grep -q 'comm tf-tp-test' || wrong="$wrong queue pairs: $(rdma resource show qp)"
    [ -z "$wrong" ] || { codes=1; echo "    left: $wrong"; }
    check 0
}
