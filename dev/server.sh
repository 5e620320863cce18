# Functions that dev/kafka, dev/kdc, dev/kubernetes, dev/ldap, dev/mariadb, dev/mongodb, dev/pebble, dev/postgres and
# dev/redis source after lib.sh: they start, wait for and stop a process.

# Prints the comment at the head of a script and fails.
usage() {
	sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$1" >&2
	exit 2
}

# make_directory DIR: creates DIR and prints its absolute path.
make_directory() {
	mkdir -p "$1"
	(cd "$1" && pwd)
}

# Prints an even port, so that a server may use the next one as well. The scripts take turns: the port of a server that
# restarts is free, because another server gets it 1500 servers later. tests/support/ports.rs lists the other ranges.
next_port() {
	local file=${TMPDIR:-/tmp}/tidewire-dev-port-$UID count
	(
		exec 9>>"$file"
		flock 9
		count=$(cat "$file")
		count=$(((${count:-RANDOM} + 1) % 1500))
		echo "$count" >"$file"
		echo $((10000 + 2 * count))
	) || echo $((10000 + 2 * (RANDOM % 1500)))
}

# is_alive PID: succeeds if the process runs. A zombie does not count: the init process of a container may never reap it.
is_alive() {
	local state
	state=$(ps -o stat= -p "$1" 2>/dev/null) && [ "${state:0:1}" != Z ]
}

# wait_for PID COMMAND...: waits until the command succeeds. Fails if the process ends first, or after five minutes:
# on a busy machine, Kafka takes more than one to start.
wait_for() {
	local pid=$1
	shift
	for _ in $(seq 3000); do
		! "$@" >/dev/null 2>&1 || return 0
		is_alive "$pid" || return 1
		sleep 0.1
	done
	return 1
}

refuse_running() {
	if [ -f "$1" ] && is_alive "$(cat "$1")"; then
		fail "already running as process $(cat "$1")"
	fi
}

# end_process SIGNAL FILE: sends a signal to the process whose ID is in the file, and waits until the process has ended.
end_process() {
	local pid
	pid=$(cat "$2")
	rm -f "$2"
	kill -"$1" "$pid" 2>/dev/null || return 0
	for _ in $(seq 600); do
		is_alive "$pid" || return 0
		sleep 0.1
	done
	fail "process $pid is still running one minute after the signal"
}

# tell DIR LINE...: prints the lines and writes them to DIR/env.
tell() {
	local directory=$1
	shift
	printf '%s\n' "$@" | tee "$directory/env"
}
