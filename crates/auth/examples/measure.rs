//! Measures the cost of the checks on this machine: `cargo run --profile fast -p tidewire-auth --example measure`.
//!
//! This is not a benchmark of the broker: one thread, warm caches, best round.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a tool that prints its findings"
)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use mqtt::QoS;
use tidewire_auth::{
    AccessAction, AccessRule, Acl, AclOptions, CertificateIdentity, ClientAttributes, Identity, Password, PasswordHash,
    SessionAcl, VerifiedPasswords,
};

fn main() {
    for rules in [0, 3, 100] {
        let (miss, hit) = (session(rules), "tree/x/sensors/temperature");
        let ns = nanoseconds(|| miss.publish(black_box(hit), QoS::AtLeastOnce, false));
        println!("publish, the last of {rules} rules decides: {ns:.1} ns");
    }
    let superuser = SessionAcl::unrestricted();
    let ns = nanoseconds(|| superuser.publish(black_box("tree/x"), QoS::AtLeastOnce, false));
    println!("publish, unrestricted: {ns:.1} ns");
    for rules in [3, 100] {
        let session = session(rules);
        let ns = nanoseconds(|| session.subscribe(black_box("tree/x/+/temperature")));
        println!("subscribe, the last of {rules} rules decides: {ns:.1} ns");
    }
    for rules in [3, 100] {
        let acl = compile(rules);
        let ns = nanoseconds(|| acl.session(black_box(&identity())));
        println!("session, {rules} rules, shared list: {ns:.1} ns");
    }
    passwords();
}

fn identity() -> Identity<'static> {
    Identity {
        client_id: "client",
        user_name: Some("alice"),
        address: [127, 0, 0, 1].into(),
        is_superuser: false,
        attributes: ClientAttributes::NONE,
        certificate: CertificateIdentity::default(),
    }
}

/// Compiles literals, subtrees and `+` in turn, none of which matches except the last rule.
fn compile(rules: usize) -> Acl {
    let shapes = ["site/{n}/status", "site/{n}/#", "site/+/{n}/state"];
    let mut list: Vec<AccessRule> = (1..rules)
        .map(|n| {
            AccessRule::allow(
                AccessAction::All,
                &[&shapes[n % shapes.len()].replace("{n}", &n.to_string())],
            )
        })
        .collect();
    if rules > 0 {
        list.push(AccessRule::allow(AccessAction::All, &["tree/#"]));
    }
    Acl::compile(&list, AclOptions::default()).unwrap()
}

fn session(rules: usize) -> SessionAcl {
    compile(rules).session(&identity())
}

fn passwords() {
    let password = Password::new("correct horse");
    let hash = PasswordHash::create(&password).unwrap();
    let mosquitto = "$7$101$rnq/f66IkNnx5rVe$bJ6Pa5ekifsOvEUFWLgY3PKfbQnJxGSbmynyEU7GNsyEiOIahypG9hY6X3POwVtgjvYv8CcKd8VlYChuBDZc/Q==";
    let mosquitto = PasswordHash::parse(mosquitto).unwrap();
    for (name, hash) in [
        ("argon2id, default cost", &hash),
        ("Mosquitto's PBKDF2, 101 iterations", &mosquitto),
    ] {
        let best = (0..10)
            .map(|_| timed(|| assert!(hash.verify(&password))))
            .min()
            .unwrap();
        println!("verify, {name}: {:.2} ms", best.as_secs_f64() * 1e3);
    }
    let verified = VerifiedPasswords::new(1024).unwrap();
    assert!(verified.verify("alice", &hash, &password));
    let ns = nanoseconds(|| verified.verify(black_box("alice"), &hash, &password));
    println!("verify, remembered: {ns:.0} ns");
}

fn nanoseconds<T>(mut call: impl FnMut() -> T) -> f64 {
    // Rounds are shorter than a time slice, so that the best one is undisturbed even on a busy machine.
    const CALLS: u32 = 1_000;
    const ROUNDS: usize = 1_000;
    let round = || timed(|| (0..CALLS).for_each(|_| drop(black_box(call()))));
    let best = std::iter::repeat_with(round).take(ROUNDS).min().unwrap();
    best.as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn timed(call: impl FnOnce()) -> Duration {
    let start = Instant::now();
    call();
    start.elapsed()
}
