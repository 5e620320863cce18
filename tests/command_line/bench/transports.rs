//! Tests `tidewire bench` over TLS, WebSocket, secure WebSocket and QUIC.

use serde_json::Value;

use super::{Broker, pairs, refs};

#[test]
fn nothing_is_lost_over_tls_web_sockets_and_quic() {
    let broker = Broker::start();
    let ca = broker.path("broker.pem");
    let messages = pairs(200);
    let [tls, ws, wss, quic] = broker.other_ports.map(|port| port.to_string());
    for (port, flags, handshakes) in [
        (&tls, &["--tls", "--cacertfile", &ca][..], 40),
        (&ws, &["--ws"], 0),
        (&wss, &["--tls", "--ws", "--cacertfile", &ca], 40),
        (&quic, &["--quic", "--cacertfile", &ca], 0),
    ] {
        let (code, said, result) = broker.run_at(port, &[&refs(&messages)[..], flags].concat());
        assert_eq!(code, 0, "{flags:?}: {said}");
        let (truth, totals) = (&result["truth"], &result["totals"]);
        let found = [
            &truth["expected"],
            &truth["received"],
            &truth["lost"],
            &truth["corrupt"],
        ];
        assert_eq!(found, [4_000, 4_000, 0, 0], "{flags:?}: {said}");
        let found = [
            &totals["connects"],
            &totals["tls_full"],
            &totals["tls_resumed"],
            &totals["disconnects"],
        ];
        assert_eq!(found, [40, handshakes, 0, 0], "{flags:?}: {said}");
        assert_eq!(result["errors"].as_array().unwrap().len(), 0, "{flags:?}: {said}");
    }
    // Options of emqtt-bench, which does not verify certificates.
    let verb = [
        "pub", "-c", "4", "-i", "1", "-I", "5", "-L", "40", "-q", "2", "-t", "tls/%i", "-S",
    ];
    let (code, said, result) = broker.run_at(&tls, &verb);
    assert_eq!((code, &result["totals"]["acknowledged"]), (0, &40.into()), "{said}");
    let (code, said, result) = broker.run_at(&wss, &[&verb[..], &["--ws"]].concat());
    assert_eq!((code, &result["totals"]["acknowledged"]), (0, &40.into()), "{said}");
}

#[test]
fn a_storm_over_tls_counts_full_and_resumed_handshakes() {
    let broker = Broker::start();
    let (ca, port) = (broker.path("broker.pem"), broker.other_ports[0].to_string());
    let storm = [
        "run",
        "connect-storm",
        "--scale",
        "0.02",
        "--duration",
        "1",
        "--warm-up",
        "0",
        "--tls",
    ];
    let storm = [&storm[..], &["--cacertfile", &ca]].concat();
    let (code, said, result) = broker.run_at(&port, &storm);
    assert_eq!(code, 0, "{said}");
    let of = |result: &Value, part: &str, key: &str| result[part][key].as_f64().unwrap();
    assert!(
        of(&result, "totals", "tls_full") >= of(&result, "totals", "connects"),
        "{said}"
    );
    assert!(
        of(&result, "throughput", "tls_full") > 0.0 && said.contains("full TLS"),
        "{said}"
    );
    assert_eq!(result["totals"]["tls_resumed"], 0, "{said}");

    let (code, said, result) = broker.run_at(&port, &[&storm[..], &["--tls-resume"]].concat());
    assert_eq!(code, 0, "{said}");
    let (full, resumed) = (of(&result, "totals", "tls_full"), of(&result, "totals", "tls_resumed"));
    // At least the first handshake of each of the 20 clients is full. A client without a ticket makes another full one.
    assert!(
        full >= 1.0 && resumed > full,
        "{full} in full, {resumed} resumed: {said}"
    );
    assert!(
        of(&result, "throughput", "tls_resumed") > 0.0 && said.contains("TLS resumed"),
        "{said}"
    );
}
