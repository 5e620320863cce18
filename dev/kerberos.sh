# Functions that create and run a Kerberos realm on a free port of 127.0.0.1. dev/kafka and dev/kdc
# source this file after server.sh.

REALM=TIDEWIRE.TEST

# prepare_kerberos DIR: creates DIR/kerberos with a realm, its principals (the brokers and one client) and their keytabs.
prepare_kerberos() {
	local directory=$1/kerberos port
	port=$(next_port)
	mkdir -p "$directory"
	cat >"$directory/krb5.conf" <<-END
		[libdefaults]
		  default_realm = $REALM
		  dns_lookup_kdc = false
		  dns_lookup_realm = false
		  dns_canonicalize_hostname = false
		  rdns = false
		  udp_preference_limit = 1
		  default_ccache_name = FILE:$directory/tickets
		[realms]
		  $REALM = {
		    kdc = 127.0.0.1:$port
		  }
	END
	cat >"$directory/kdc.conf" <<-END
		[kdcdefaults]
		  kdc_listen = 127.0.0.1:$port
		  kdc_tcp_listen = 127.0.0.1:$port
		[realms]
		  $REALM = {
		    database_name = $directory/principal
		    key_stash_file = $directory/stash
		  }
	END
	with_realm "$1" kdb5_util create -s -r "$REALM" -P "$(new_id)"
	add_principal "$1" kafka/127.0.0.1 kafka.keytab
	add_principal "$1" tidewire tidewire.keytab
}

# add_principal DIR NAME KEYTAB: adds a principal and writes its key to DIR/kerberos/KEYTAB.
add_principal() {
	with_realm "$1" kadmin.local -r "$REALM" addprinc -randkey "$2"
	with_realm "$1" kadmin.local -r "$REALM" ktadd -k "$1/kerberos/$3" "$2"
}

start_kerberos() {
	local file=$1/pid.kerberos
	[ -f "$file" ] && kill -0 "$(cat "$file")" 2>/dev/null && return 0
	KRB5_CONFIG=$1/kerberos/krb5.conf KRB5_KDC_PROFILE=$1/kerberos/kdc.conf \
		krb5kdc -n -r "$REALM" >>"$1/kerberos/log" 2>&1 </dev/null &
	echo $! >"$file"
}

# with_realm DIR COMMAND...: runs a command with the configuration of the realm.
with_realm() {
	local directory=$1/kerberos
	shift
	KRB5_CONFIG=$directory/krb5.conf KRB5_KDC_PROFILE=$directory/kdc.conf "$@" >>"$directory/log" 2>&1 ||
		fail "cannot set up the Kerberos realm: $(tail -n 3 "$directory/log")"
}
