#!/bin/sh
# Creates the certificates and OCSP responses of crates/net/src/certificate/ocsp_tests.rs, and the seeds of the fuzz
# target `ocsp`, with OpenSSL 3.
# The tests have constants with the times that the last run has printed.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

key() { openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$work/$1.key"; }

# self_signed NAME SUBJECT
self_signed() {
    key "$1"
    openssl req -x509 -new -key "$work/$1.key" -subj "/CN=$2" -days 36500 -out "$work/$1.pem" \
        -addext basicConstraints=critical,CA:TRUE
}

# issue NAME SUBJECT SERIAL CA EXTENSION [DAYS]
issue() {
    key "$1"
    printf '%s\n' "$5" > "$work/extensions"
    openssl req -new -key "$work/$1.key" -subj "/CN=$2" -out "$work/$1.csr"
    openssl x509 -req -in "$work/$1.csr" -CA "$work/$4.pem" -CAkey "$work/$4.key" -set_serial "$3" -days "${6:-36500}" \
        -extfile "$work/extensions" -out "$work/$1.pem" 2> /dev/null
}

# respond FILE SIGNER OPTION...: the response for server.pem
respond() {
    file=$1 signer=$2
    shift 2
    openssl ocsp -index "$work/index.txt" -CA "$work/ca.pem" -rsigner "$work/$signer.pem" -rkey "$work/$signer.key" \
        -reqin "$work/request.der" -respout "$file" "$@" > /dev/null 2>&1
}

self_signed ca authority
self_signed namesake authority
self_signed stranger stranger
aia='authorityInfoAccess=caIssuers;URI:http://ca.example/ca.der,OCSP;URI:http://ocsp.example:2560/x'
issue server mqtt.example 0x0100 ca "$aia"
issue other other.example 0x0200 ca 'basicConstraints=CA:FALSE'
issue responder responder 0x0300 ca 'extendedKeyUsage=OCSPSigning'
issue brief responder 0x0600 ca 'extendedKeyUsage=OCSPSigning' 1
issue plain responder 0x0400 ca 'extendedKeyUsage=serverAuth'
issue foreign responder 0x0500 namesake 'extendedKeyUsage=OCSPSigning'

openssl ocsp -sha1 -issuer "$work/ca.pem" -cert "$work/server.pem" -no_nonce -reqout "$work/request.der"
cp "$work/request.der" request.der
entry() { printf '%s\t21001231000000Z\t%s\t%s\tunknown\t/CN=%s\n' "$1" "$2" "$3" "$4"; }
entry V '' 0100 mqtt.example > "$work/index.txt"
entry V '' 0200 other.example >> "$work/index.txt"
respond good.der ca -ndays 7
respond good-key-id.der ca -ndays 7 -resp_key_id
respond good-no-next-update.der ca
respond good-delegated.der responder -ndays 7
respond good-delegated-for-a-day.der brief -ndays 7
respond plain-certificate.der plain -ndays 7
respond foreign-certificate.der foreign -ndays 7
respond no-certificate.der responder -ndays 7 -resp_no_certs
respond stranger.der stranger -ndays 7
respond namesake.der namesake -ndays 7
entry R 261101120000Z 0100 mqtt.example > "$work/index.txt"
respond revoked.der ca -ndays 7
: > "$work/index.txt"
respond unknown.der ca -ndays 7
entry V '' 0200 other.example > "$work/index.txt"
openssl ocsp -sha1 -issuer "$work/ca.pem" -cert "$work/other.pem" -no_nonce -reqout "$work/request.der"
respond other.der ca -ndays 7
printf '\060\003\012\001\003' > try-later.der

for name in ca server other stranger; do
    openssl x509 -in "$work/$name.pem" -outform DER -out "$name.cert.der"
done
seeds=../../../../fuzz/seeds/ocsp
mkdir -p $seeds
for name in good good-delegated good-no-next-update revoked try-later server.cert; do
    cp $name.der $seeds/$name
done
openssl ocsp -respin good.der -noverify -text | grep -E 'This Update|Next Update'
