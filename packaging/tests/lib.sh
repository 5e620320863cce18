# Functions that the tests of the packages source. The tests define or install the command `tidewire`.

# The page is next to this file if dev/dist-test has copied both into a Debian.
INSTALL_PAGE=$(dirname "${BASH_SOURCE[0]}")/install.md
[ -e "$INSTALL_PAGE" ] || INSTALL_PAGE=$(dirname "${BASH_SOURCE[0]}")/../../docs/get-started/install.md

# wait_for COMMAND...: waits until the command succeeds, at most two minutes.
wait_for() {
	for _ in $(seq 1200); do
		! "$@" >/dev/null 2>&1 || return 0
		sleep 0.1
	done
	"$@"
}

# has_lines FILE COUNT: succeeds if the file has at least that many lines.
has_lines() {
	[ "$(wc -l <"$1")" -ge "$2" ]
}

# publish_numbers FILE: publishes numbers at load/numbers until FILE.stop exists. Publishes each number again until the
# server has acknowledged it, and then writes it to the file.
publish_numbers() {
	local number=0
	while [ ! -e "$1.stop" ]; do
		number=$((number + 1))
		until tidewire pub -q 1 -t load/numbers -m "$number" 2>/dev/null; do sleep 0.1; done
		echo "$number" >>"$1"
	done
}

# begin_messages FILE: publishes a retained message and one for an offline session. Starts a publisher and a subscriber,
# which stay connected, or reconnect, until end_messages.
begin_messages() {
	tidewire pub -q 1 -r -t dist/retained -m 'before the upgrade'
	tidewire sub -V 5 -i offline -c -x 4294967295 -q 1 -t dist/queue -E
	tidewire pub -q 1 -t dist/queue -m waits
	: >"$1"
	# The session exists before the first number is published.
	tidewire sub -V 5 -i online -c -x 4294967295 -q 1 -t load/numbers -E
	tidewire sub -V 5 -i online -c -x 4294967295 -q 1 -t load/numbers >"$1.received" 2>/dev/null &
	subscriber=$!
	(set +x && publish_numbers "$1") &
	publisher=$!
	wait_for has_lines "$1.received" 10
}

# check_messages FILE: fails unless the subscriber receives ten more numbers, and the retained message is still there.
check_messages() {
	wait_for has_lines "$1.received" $(($(wc -l <"$1.received") + 10))
	[ "$(tidewire sub -t dist/retained -C 1)" = 'before the upgrade' ]
}

# end_messages FILE: fails unless the subscriber receives all numbers, and the offline session its message.
end_messages() {
	touch "$1.stop"
	wait "$publisher"
	wait_for grep -qx "$(tail -n 1 "$1")" "$1.received"
	kill "$subscriber"
	# A number whose acknowledgement a restart has cut off arrives twice.
	sort -n -u "$1.received" | diff - "$1"
	[ "$(tidewire sub -V 5 -i offline -c -x 4294967295 -q 1 -t dist/queue -C 1)" = waits ]
}

# documented HEADING: prints the first commands below a heading of docs/get-started/install.md.
documented() {
	awk -v heading="## $1" '
		/^## / { is_below = $0 == heading }
		/^```/ && is_block { exit }
		is_block { print; has_commands = 1 }
		/^```sh/ && is_below { is_block = 1 }
		END { exit !has_commands }' "$INSTALL_PAGE"
}

# first_message NAME COMMANDS: runs the commands and then those of the section "The first message". Prints how long both
# took.
first_message() {
	local start received tenths
	start=${EPOCHREALTIME//[^0-9]/}
	hash -r
	eval "$2"
	received=$(eval "$(documented 'The first message')")
	tenths=$(((${EPOCHREALTIME//[^0-9]/} - start) / 100000))
	[ "$received" = 'hello, world' ]
	echo "first message: $1 $((tenths / 10)).$((tenths % 10)) s"
}
