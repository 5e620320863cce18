# Shared by the scripts beside it; sourced, not run.

say() {
	printf '%s\n' "tidewire: $*" >&2
}

fail() {
	say "$*"
	exit 1
}

has() {
	command -v "$1" >/dev/null 2>&1
}

# Debian keeps brokers where only root looks.
PATH="$HOME/.cargo/bin:$PATH:/usr/sbin:/usr/local/sbin"
export PATH
