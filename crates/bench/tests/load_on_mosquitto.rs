//! The load against Mosquitto: a broker that somebody else wrote agrees with every count.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use bench::scenario::{Group, Payload, Presence};
use bench::target::{Target, Tls, Transport};
use support::mosquitto::Mosquitto;
use support::{Report, publishers, run, scenario, subscribers, target, truth};

fn groups(qos: u8, version: u8) -> Vec<Group> {
    let mut groups = vec![subscribers(20, "t/#", qos), publishers(5, "t/%i", qos, 100)];
    groups.iter_mut().for_each(|group| group.version = version);
    groups
}

/// 20 subscribers, 5 publishers, 100 messages each.
fn assert_exact(report: &Report, qos: u8, about: &str) {
    assert_eq!(
        truth(report),
        (100, 10_000, 0, 0, 0, 0, 0),
        "{about}: {:?}",
        report.outcome
    );
    assert_eq!(
        (report.totals.published, report.totals.received),
        (500, 10_000),
        "{about}"
    );
    assert_eq!(report.totals.acknowledged, if qos > 0 { 500 } else { 0 }, "{about}");
    assert_eq!(
        (
            report.totals.connects,
            report.totals.connects_failed,
            report.totals.disconnects
        ),
        (25, 0, 0),
        "{about}"
    );
    assert!(report.outcome.errors.is_empty(), "{about}: {:?}", report.outcome.errors);
}

#[test]
fn every_qos_and_version_is_exact() {
    let mosquitto = Mosquitto::start();
    for qos in 0..=2 {
        for version in 3..=5 {
            let report = run(scenario(groups(qos, version)), target(mosquitto.port), 2);
            assert_exact(&report, qos, &format!("QoS {qos}, version {version}"));
            assert!(report.totals.segments_in > 0 && report.totals.cpu_ns > 0);
        }
    }
}

#[test]
fn tls_and_websockets_are_exact() {
    let mosquitto = Mosquitto::start();
    let all = [
        (Transport::Tls, mosquitto.tls_port),
        (Transport::Ws, mosquitto.ws_port),
        (Transport::Wss, mosquitto.wss_port),
    ];
    for (transport, port) in all {
        let target = Target {
            transport,
            tls: Tls {
                ca_file: Some(mosquitto.directory.join("ca.pem")),
                ..Tls::default()
            },
            path: "/mqtt".into(),
            ..target(port)
        };
        for qos in [0, 2] {
            let report = run(scenario(groups(qos, 4)), target.clone(), 2);
            assert_exact(&report, qos, &format!("{transport:?}, QoS {qos}"));
        }
    }
}

#[test]
fn tls_sessions_resume_where_wanted() {
    let mosquitto = Mosquitto::start();
    for resumes in [false, true] {
        let tls = Tls {
            is_insecure: true,
            resumes,
            ..Tls::default()
        };
        let target = Target {
            transport: Transport::Tls,
            tls,
            ..target(mosquitto.tls_port)
        };
        let mut group = Group {
            name: "idle".into(),
            clients: 40,
            ..Group::default()
        };
        group.keep_alive_s = 60;
        let mut scenario = scenario(vec![group]);
        scenario.connecting_max = 1;
        let report = run(scenario, target, 1);
        let resumed = report.totals.tls_resumed;
        assert!(
            if resumes { resumed >= 30 } else { resumed == 0 },
            "{resumed} of 40 resumed"
        );
    }
}

#[test]
fn an_untrusted_certificate_is_refused() {
    let mosquitto = Mosquitto::start();
    let target = Target {
        transport: Transport::Tls,
        ..target(mosquitto.tls_port)
    };
    let failure = support::try_run(scenario(groups(0, 4)), target, 1).err().unwrap();
    assert!(failure.contains("certificate"), "{failure}");
}

#[test]
fn large_messages_are_exact() {
    let mosquitto = Mosquitto::start();
    let mut groups = vec![subscribers(2, "t/#", 1), publishers(2, "t/%i", 1, 5)];
    groups[1].publish.as_mut().unwrap().payload = Payload::Bytes(700_000);
    let report = run(scenario(groups), target(mosquitto.port), 2);
    assert_eq!(truth(&report), (4, 20, 0, 0, 0, 0, 0), "{:?}", report.outcome);
}

#[test]
fn shared_subscriptions_are_exact() {
    let mosquitto = Mosquitto::start();
    let mut groups = groups(1, 5);
    groups[0].subscribe[0].filter = "$share/crew/t/#".into();
    let report = run(scenario(groups), target(mosquitto.port), 2);
    assert_eq!(truth(&report), (5, 500, 0, 0, 0, 0, 0), "{:?}", report.outcome);
    assert_eq!(report.totals.received, 500);
}

#[test]
fn persistent_sessions_keep_what_was_sent_meanwhile() {
    let mosquitto = Mosquitto::start();
    for (qos, version) in [(1, 4), (2, 4), (1, 5), (2, 5)] {
        let mut groups = groups(qos, version);
        (groups[0].clean_start, groups[0].session_expiry_s) = (false, 600);
        groups[0].presence = Presence::AwayWhilePublishing;
        groups[0].client_id = format!("away-{qos}-{version}-%i");
        let report = run(scenario(groups), target(mosquitto.port), 2);
        assert_eq!(
            truth(&report),
            (100, 10_000, 0, 0, 0, 0, 0),
            "QoS {qos}, version {version}: {:?}",
            report.outcome
        );
        assert_eq!((report.totals.received, report.totals.connects), (10_000, 45));
    }
}

#[test]
fn retained_messages_are_exact() {
    let mosquitto = Mosquitto::start();
    let mut groups = vec![subscribers(10, "t/#", 1), publishers(50, "t/%i", 1, 3)];
    groups[0].presence = Presence::AfterPublishing;
    groups[1].publish.as_mut().unwrap().retain = true;
    let report = run(scenario(groups), target(mosquitto.port), 2);
    assert_eq!(truth(&report), (500, 500, 0, 0, 0, 0, 0), "{:?}", report.outcome);
    assert_eq!(report.totals.received, 500);
}
