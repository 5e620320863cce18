//! Tests limits of listeners, and the PROXY protocol.

use std::io::{Read, Write};
use std::sync::Arc;

use broker::{TokenRate, Transport};
use net::{AddressPrefix, EarlyCloseReason, ProxyConfig};

use super::client::*;
use super::server::*;
use super::tls::Witness;

#[test]
fn connections_beyond_the_limit_of_a_listener_are_closed_and_counted() {
    let mut options = options(2);
    options.listener(Transport::Tcp).max_connections = 2;
    let running = options.start();
    let first = running.client(Transport::Tcp, "first");
    let _second = running.client(Transport::Tcp, "second");
    assert_eq!(read_to_close(&mut running.tcp()), b"");
    assert_eq!(running.refused(Transport::Tcp, EarlyCloseReason::ListenerFull), 1);
    running.client(Transport::WebSocket, "elsewhere").ping();
    drop(first);
    eventually("there is room again", || {
        running.handle.listeners()[0].current_connections < 2
    });
    running.client(Transport::Tcp, "third").ping();
}

#[test]
fn connections_beyond_the_limit_of_the_server_are_closed_and_counted() {
    let mut options = options(2);
    options.config.max_connections = 2;
    let running = options.start();
    let _first = running.client(Transport::Tcp, "first");
    let _second = running.client(Transport::Tls, "second");
    assert_eq!(read_to_close(&mut running.tcp()), b"");
    assert_eq!(running.refused(Transport::Tcp, EarlyCloseReason::ServerFull), 1);
    assert_eq!(running.handle.connections(), 2);
}

#[test]
fn connections_beyond_the_rate_are_closed_and_counted() {
    let mut options = options(1);
    options.listener(Transport::Tcp).max_connection_rate = Some(TokenRate {
        amount: 3,
        period_ms: 180_000,
    });
    let running = options.start();
    let _clients: Vec<_> = (0..3)
        .map(|n| running.client(Transport::Tcp, &format!("burst-{n}")))
        .collect();
    let mut stream = running.tcp();
    let _ = stream.write_all(&connect("excess"));
    read_to_close(&mut stream);
    assert!(running.refused(Transport::Tcp, EarlyCloseReason::ConnectionRate) >= 1);
}

#[test]
fn rate_of_an_address_is_that_of_the_client_behind_a_proxy() {
    let mut options = options(2);
    options.config.max_connection_rate_per_address = Some(TokenRate {
        amount: 2,
        period_ms: 600_000,
    });
    let network = AddressPrefix {
        address: "127.0.0.1".parse().unwrap(),
        prefix_bits: 32,
    };
    options.listener(Transport::Tcp).proxy = Some(ProxyConfig { trusted: vec![network] });
    let running = options.start();
    let connect_from = |address: &str, id: &str| {
        let mut stream = running.tcp();
        let header = format!("PROXY TCP4 {address} 10.0.0.1 50000 1883\r\n");
        let _ = stream.write_all(&[header.as_bytes(), &connect(id)].concat());
        let mut first = [0];
        stream.read(&mut first).is_ok_and(|bytes| bytes == 1)
    };
    for address in ["192.0.2.1", "192.0.2.2"] {
        let accepted = [0, 1, 2].map(|n| connect_from(address, &format!("{address}-{n}")));
        assert_eq!(accepted, [true, true, false], "{address}");
    }
    assert_eq!(running.refused(Transport::Tcp, EarlyCloseReason::AddressRate), 2);
    // A listener without a proxy rejects before the handshake.
    let _clients = [0, 1].map(|n| running.client(Transport::WebSocket, &format!("direct-{n}")));
    assert_eq!(read_to_close(&mut tcp(running.address(Transport::Tls))), b"");
    assert_eq!(running.refused(Transport::Tls, EarlyCloseReason::AddressRate), 1);
}

fn behind_proxy(trusted: &str) -> (Running, Arc<Witness>) {
    let witness = Arc::new(Witness::default());
    let mut options = options(4);
    options.access = witness.clone();
    for listener in &mut options.config.listeners {
        let network = AddressPrefix {
            address: trusted.parse().unwrap(),
            prefix_bits: 32,
        };
        listener.proxy = Some(ProxyConfig { trusted: vec![network] });
    }
    (options.start(), witness)
}

#[test]
fn trusted_proxy_provides_the_client_address() {
    let (running, witness) = behind_proxy("127.0.0.1");
    let v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0C\xC0\x00\x02\x09\x0A\x00\x00\x01\xC3\x50\x07\x5B";
    for (n, header) in [&b"PROXY TCP4 192.0.2.9 10.0.0.1 50000 1883\r\n"[..], v2]
        .into_iter()
        .cycle()
        .take(8)
        .enumerate()
    {
        for transport in TRANSPORTS {
            let mut stream = tcp(running.address(transport));
            stream.write_all(header).unwrap();
            let id = format!("{transport:?}-{n}");
            let config = running.authority.client_config();
            let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
            let tls = |stream| {
                rustls::StreamOwned::new(
                    rustls::ClientConnection::new(config.clone(), name.clone()).unwrap(),
                    stream,
                )
            };
            match transport {
                Transport::Tcp => Client::connect(stream, &id),
                Transport::Tls => Client::connect(tls(stream), &id),
                Transport::WebSocket => Client::connect(WebSocket::upgrade(stream), &id),
                Transport::SecureWebSocket => Client::connect(WebSocket::upgrade(tls(stream)), &id),
                Transport::Quic => unreachable!("not a TCP stream"),
            }
            .ping();
            let (_, address) = witness.seen.lock().unwrap().pop().unwrap();
            assert_eq!(address.to_string(), "192.0.2.9", "{transport:?}");
        }
    }
}

/// The proxy runs on this machine, but its clients may not.
#[test]
fn proxy_header_without_address_hides_the_peer_address() {
    let (running, witness) = behind_proxy("127.0.0.1");
    let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
    for (n, header) in [&b"PROXY UNKNOWN\r\n"[..], local].into_iter().enumerate() {
        let mut stream = running.tcp();
        stream.write_all(header).unwrap();
        Client::connect(stream, &format!("unknown-{n}")).ping();
        assert_eq!(witness.seen.lock().unwrap().pop().unwrap().1.to_string(), "0.0.0.0");
    }
}

#[test]
fn proxy_header_may_be_split_or_joined_with_connect() {
    let (running, witness) = behind_proxy("127.0.0.1");
    let bytes = [
        &b"PROXY TCP6 2001:db8::9 ::1 50000 1883\r\n"[..],
        &connect("segment"),
        &PINGREQ,
    ]
    .concat();
    for chunk in [bytes.len(), 1, 7] {
        let mut stream = running.tcp();
        for chunk in bytes.chunks(chunk) {
            stream.write_all(chunk).unwrap();
        }
        assert_eq!(read_packet(&mut stream).unwrap().first, 0x20);
        assert_eq!(read_packet(&mut stream).unwrap().first, PINGRESP);
        assert_eq!(witness.seen.lock().unwrap().pop().unwrap().1.to_string(), "2001:db8::9");
    }
}

#[test]
fn untrusted_peers_and_missing_headers_are_rejected() {
    let (running, witness) = behind_proxy("192.0.2.1");
    let mut stream = running.tcp();
    let _ = stream.write_all(b"PROXY TCP4 192.0.2.9 10.0.0.1 50000 1883\r\n");
    assert_eq!(read_to_close(&mut stream), b"");
    assert_eq!(running.refused(Transport::Tcp, EarlyCloseReason::ProxyUntrusted), 1);

    let (running, _) = behind_proxy("127.0.0.1");
    let mut stream = running.tcp();
    stream.write_all(&connect("direct")).unwrap();
    assert_eq!(read_to_close(&mut stream), b"");
    assert_eq!(running.refused(Transport::Tcp, EarlyCloseReason::ProxyMalformed), 1);
    assert!(witness.seen.lock().unwrap().is_empty());
}
