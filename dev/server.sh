# How dev/kafka, dev/postgres and dev/redis run a server; sourced after lib.sh, not run.

# Prints the comment at the head of a script and fails.
usage() {
	sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$1" >&2
	exit 2
}

# Makes DIR and prints it as an absolute path.
make_directory() {
	mkdir -p "$1"
	(cd "$1" && pwd)
}

# Below the range from which Linux takes the ports of outgoing connections, so that a load test does not sit on it.
random_port() {
	echo $((20000 + (RANDOM * 32768 + RANDOM) % 12000))
}

# Whether a process runs. One that has ended is a zombie until its parent looks, which an init of a container may do late or never.
is_alive() {
	local state
	state=$(ps -o stat= -p "$1" 2>/dev/null) && [ "${state:0:1}" != Z ]
}

# wait_for PID COMMAND...: until the command succeeds; fails when the process ends first, or after a minute.
wait_for() {
	local pid=$1
	shift
	for _ in $(seq 600); do
		! "$@" >/dev/null 2>&1 || return 0
		is_alive "$pid" || return 1
		sleep 0.1
	done
	return 1
}

refuse_running() {
	if [ -f "$1" ] && is_alive "$(cat "$1")"; then
		fail "it runs already, as process $(cat "$1")"
	fi
}

# end_process SIGNAL FILE: the process whose number the file holds; returns when it is gone.
end_process() {
	local pid
	pid=$(cat "$2")
	rm -f "$2"
	kill -"$1" "$pid" 2>/dev/null || return 0
	for _ in $(seq 600); do
		is_alive "$pid" || return 0
		sleep 0.1
	done
	fail "process $pid does not end"
}

# tell DIR LINE...: prints the lines and keeps them.
tell() {
	local directory=$1
	shift
	printf '%s\n' "$@" | tee "$directory/env"
}
