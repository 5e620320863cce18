//! Tests of the login limiter.

// One test prints its measurement.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::sync::{Arc, Mutex};

use super::*;

const LIMITS: LoginLimits = LoginLimits {
    failures_max: 10,
    lockout: Duration::from_secs(5),
    lockout_max: Duration::from_secs(900),
};

struct Attacker {
    limiter: Arc<LoginLimiter>,
    address: IpAddr,
    user: &'static str,
    guesses: u64,
}

impl Attacker {
    fn on(limiter: &Arc<LoginLimiter>, address: &str) -> Attacker {
        Attacker {
            limiter: limiter.clone(),
            address: address.parse().unwrap(),
            user: "ann",
            guesses: 0,
        }
    }

    fn new(address: &str) -> Attacker {
        Attacker::on(&Arc::default(), address)
    }

    /// Tries another password. All are wrong.
    fn guess(&mut self, now: Instant) -> Result<(), Duration> {
        self.guesses += 1;
        let password = format!("guess-{}", self.guesses);
        self.fail(&password, now)
    }

    fn fail(&self, password: &str, now: Instant) -> Result<(), Duration> {
        let attempt = self.attempt(password);
        self.limiter.admit(&attempt, now)?;
        self.limiter.record_failure(&attempt, now);
        Ok(())
    }

    fn attempt<'a>(&self, password: &'a str) -> LoginAttempt<'a> {
        LoginAttempt {
            kind: LoginKind::Mqtt,
            address: self.address,
            user_name: Some(self.user),
            secret: password.as_bytes(),
        }
    }

    fn admit(&self, password: &str, now: Instant) -> Result<(), Duration> {
        self.limiter.admit(&self.attempt(password), now)
    }

    /// Guesses until the address is locked out. Returns for how long.
    fn be_locked_out(&mut self, now: Instant) -> Duration {
        loop {
            if let Err(wait) = self.guess(now) {
                return wait;
            }
        }
    }
}

#[test]
fn second_factor_waits_for_guesses_from_all_addresses() {
    for failures_max in [0, 10, 1000] {
        let limits = LoginLimits {
            failures_max,
            ..LoginLimits::default()
        };
        codes_of_a_user_are_limited(&LoginLimiter::new(limits, |_| ()));
    }
}

fn codes_of_a_user_are_limited(limiter: &LoginLimiter) {
    let now = Instant::now();
    let attempt = |number: u32| LoginAttempt {
        kind: LoginKind::SecondFactor,
        address: IpAddr::V4((0x0a00_0000 + number).into()),
        user_name: Some("ann"),
        secret: b"123456",
    };
    let guesses = (0..1000).take_while(|number| {
        let is_admitted = limiter.admit(&attempt(*number), now).is_ok();
        limiter.record_failure(&attempt(*number), now);
        is_admitted
    });
    assert!(!limiter.is_code_limit_reached(&attempt(0), now));
    assert_eq!(guesses.count(), CODE_FAILURES_MAX as usize);
    assert!(limiter.is_code_limit_reached(&attempt(0), now));
    assert_eq!(limiter.admit(&attempt(5000), now), Err(CODE_FORGET_AFTER));
    assert!(limiter.admit(&attempt(5000), now + CODE_FORGET_AFTER).is_ok());
    for kind in [LoginKind::ConsoleUser, LoginKind::RecoveryCode] {
        let other = LoginAttempt { kind, ..attempt(5000) };
        assert!(limiter.admit(&other, now).is_ok(), "the limit of {kind:?} is separate");
    }
}

#[test]
fn lock_outs_of_an_address_grow_to_the_limit() {
    let (mut attacker, mut now) = (Attacker::new("10.0.0.1"), Instant::now());
    assert_eq!(attacker.be_locked_out(now), Duration::from_secs(5));
    assert_eq!(attacker.guesses, 11);
    for seconds in [10, 20, 40, 80, 160, 320, 640, 900, 900] {
        now += attacker.admit("wait", now).unwrap_err();
        assert_eq!(attacker.be_locked_out(now), Duration::from_secs(seconds));
    }
    assert_eq!(attacker.limiter.stats(now).lockouts, 10);
    assert_eq!(attacker.limiter.stats(now).long_locked_addresses, 1);
}

#[test]
fn guesser_has_few_guesses_per_hour() {
    let (mut attacker, start) = (Attacker::new("10.0.0.1"), Instant::now());
    // As fast as 100 guesses per second.
    let checked = (0..360_000).filter(|n| attacker.guess(start + Duration::from_millis(10) * *n).is_ok());
    let checked = checked.count();
    assert!((10..100).contains(&checked), "{checked} guesses in the first hour");
}

#[test]
fn quiet_address_starts_again_with_a_short_lock_out() {
    let (mut attacker, now) = (Attacker::new("10.0.0.1"), Instant::now());
    attacker.be_locked_out(now);
    attacker.be_locked_out(now + Duration::from_secs(5));
    let later = now + Duration::from_secs(5 + 10 + 900);
    assert_eq!(attacker.be_locked_out(later), Duration::from_secs(5));
}

#[test]
fn real_user_is_never_refused_at_another_address() {
    let limiter = Arc::new(LoginLimiter::default());
    let now = Instant::now();
    for n in 0..50 {
        Attacker::on(&limiter, &format!("10.0.0.{n}")).be_locked_out(now);
    }
    let owner = Attacker::on(&limiter, "192.0.2.1");
    assert_eq!(owner.admit("right", now), Ok(()));
}

#[test]
fn attacked_user_has_one_guess_per_failed_address() {
    let limiter = Arc::new(LoginLimiter::default());
    let now = Instant::now();
    for n in 0..10 {
        Attacker::on(&limiter, &format!("10.0.0.{n}")).be_locked_out(now);
    }
    let mut attacker = Attacker::on(&limiter, "10.0.1.1");
    assert_eq!(attacker.guess(now), Ok(()));
    assert_eq!(attacker.guess(now), Err(FORGET_AFTER));
    // Another user is not affected.
    attacker.user = "bob";
    assert_eq!(attacker.guess(now), Ok(()));
}

#[test]
fn known_login_does_not_wait() {
    let (mut attacker, now) = (Attacker::new("10.0.0.1"), Instant::now());
    attacker.limiter.record_success(&attacker.attempt("right"));
    attacker.be_locked_out(now);
    assert_eq!(attacker.admit("right", now), Ok(()));
    attacker.user = "bob";
    assert!(attacker.admit("right", now).is_err());
    // The credentials are known at one address only.
    let mut elsewhere = Attacker::on(&attacker.limiter, "10.0.0.2");
    elsewhere.be_locked_out(now);
    assert!(elsewhere.admit("right", now).is_err());
}

#[test]
fn known_logins_of_a_user_cannot_be_guessed() {
    let (mut attacker, now) = (Attacker::new("10.0.0.1"), Instant::now());
    attacker.limiter.record_success(&attacker.attempt("right"));
    attacker.be_locked_out(now);
    for _ in 0..KNOWN_TESTS_MAX {
        attacker.guess(now).unwrap_err();
    }
    assert!(attacker.admit("right", now).is_err());
}

#[test]
fn known_token_passes_although_its_neighbour_guesses() {
    let (limiter, now) = (LoginLimiter::default(), Instant::now());
    let token = |secret| LoginAttempt {
        kind: LoginKind::DeviceToken,
        address: "10.0.0.1".parse().unwrap(),
        user_name: None,
        secret,
    };
    limiter.record_success(&token(b"right"));
    let guesses: Vec<String> = (0..1000).map(|n| format!("guess-{n}")).collect();
    let (failed, tested) = guesses.split_at(10);
    failed
        .iter()
        .for_each(|guess| limiter.record_failure(&token(guess.as_bytes()), now));
    for guess in tested {
        limiter.admit(&token(guess.as_bytes()), now).unwrap_err();
    }
    assert_eq!(limiter.admit(&token(b"right"), now), Ok(()));
}

#[test]
fn repeated_guess_of_a_known_login_counts_once() {
    let (mut attacker, now) = (Attacker::new("10.0.0.1"), Instant::now());
    attacker.limiter.record_success(&attacker.attempt("right"));
    attacker.be_locked_out(now);
    for _ in 0..2 * KNOWN_TESTS_MAX {
        attacker.admit("wrong", now).unwrap_err();
    }
    assert_eq!(attacker.admit("right", now), Ok(()));
}

#[test]
fn user_with_many_addresses_does_not_displace_known_logins() {
    let (mut owner, now) = (Attacker::new("192.0.2.1"), Instant::now());
    owner.limiter.record_success(&owner.attempt("right"));
    let other = Attacker::on(&owner.limiter, "192.0.2.2");
    for n in 0..2 * KNOWN_LOGINS_MAX as u32 {
        let attempt = LoginAttempt {
            address: IpAddr::V4((0x0a00_0000 + n).into()),
            user_name: Some("bob"),
            ..other.attempt("right")
        };
        owner.limiter.record_success(&attempt);
    }
    {
        let state = owner.limiter.lock();
        let known = state.known.young.len() + state.known.old.len();
        assert!(known <= KNOWN_LOGINS_PER_NAME_MAX + 1, "{known}");
    }
    owner.be_locked_out(now);
    assert_eq!(owner.admit("right", now), Ok(()));
}

#[test]
fn names_share_a_full_table_of_known_logins() {
    let limits = TagLimits {
        all_max: 64,
        per_name_max: 16,
    };
    let mut known = RecentTags::default();
    for tag in 0..10_000 {
        known.insert(tag, tag % 5, limits);
        assert!(known.young.len() <= 32 && known.old.len() <= 32);
        for name in 0..5 {
            let of_name = |tags: &HashMap<u64, u64>| tags.values().filter(|of| **of == name).count();
            let young = of_name(&known.young);
            assert_eq!(young, known.young_of_name.get(&name).copied().unwrap_or(0));
            assert!(young <= 8 && of_name(&known.old) <= 8);
        }
    }
    assert!(known.contains(9_999, limits));
}

#[test]
fn repeated_wrong_password_counts_once() {
    let (attacker, now) = (Attacker::new("10.0.0.1"), Instant::now());
    for _ in 0..1000 {
        attacker.fail("wrong", now).unwrap();
    }
    let stats = attacker.limiter.stats(now);
    assert_eq!((stats.failures, stats.repeated_failures), (1, 999));
}

#[test]
fn successful_logins_are_not_counted() {
    let (attacker, now) = (Attacker::new("::1"), Instant::now());
    for n in 0..100 {
        let password = n.to_string();
        attacker.admit(&password, now).unwrap();
        attacker.limiter.record_success(&attacker.attempt(&password));
    }
}

#[test]
fn ipv6_network_counts_as_one_address() {
    let (mut attacker, now) = (Attacker::new("2001:db8::1"), Instant::now());
    attacker.be_locked_out(now);
    for (address, is_locked) in [("2001:db8::ffff", true), ("2001:db8:0:1::1", false)] {
        let neighbour = Attacker::on(&attacker.limiter, address);
        assert_eq!(neighbour.admit("right", now).is_err(), is_locked, "{address}");
    }
}

#[test]
fn tables_are_bounded_and_keep_the_worst_addresses() {
    let (mut worst, now) = (Attacker::new("192.0.2.1"), Instant::now());
    worst.be_locked_out(now);
    for n in 0..3 * ADDRESSES_MAX as u32 {
        let address = IpAddr::V4((0x0a00_0000 + n).into());
        let name = n.to_string();
        let attempt = LoginAttempt {
            address,
            user_name: Some(&name),
            ..worst.attempt("guess")
        };
        worst.limiter.record_failure(&attempt, now);
        worst.limiter.record_success(&attempt);
    }
    {
        let state = worst.limiter.lock();
        assert!(state.addresses.len() <= ADDRESSES_MAX && state.users.forgotten_at.len() <= USERS_MAX);
        assert!(state.wrong.young.len() + state.wrong.old.len() <= WRONG_LOGINS_MAX);
        assert!(state.known.young.len() + state.known.old.len() <= KNOWN_LOGINS_MAX);
    }
    assert!(worst.guess(now).is_err());
}

/// A full table is scanned once per eighth of its entries: so many entries are free after an eviction. The time is in
/// the output.
#[test]
fn failures_from_a_million_addresses_cost_a_constant_each() {
    const ADDRESSES: u32 = 1_000_000;
    let (attacker, now) = (Attacker::new("192.0.2.1"), Instant::now());
    let start = Instant::now();
    let (mut evictions, mut length) = (0, 0);
    for n in 0..ADDRESSES {
        let name = n.to_string();
        let attempt = LoginAttempt {
            address: IpAddr::V4((0x0a00_0000 + n).into()),
            user_name: Some(&name),
            ..attacker.attempt("guess")
        };
        attacker.limiter.record_failure(&attempt, now);
        let before = std::mem::replace(&mut length, attacker.limiter.lock().addresses.len());
        evictions += usize::from(length <= before);
    }
    println!("{:?} per failure", start.elapsed() / ADDRESSES);
    let most = ADDRESSES as usize / (ADDRESSES_MAX / EVICTED_SHARE);
    assert!(
        (1..=most).contains(&evictions),
        "{evictions} evictions, at most {most} expected"
    );
    let state = attacker.limiter.lock();
    assert!(state.addresses.len() > ADDRESSES_MAX / 2 && state.addresses.len() <= ADDRESSES_MAX);
}

#[test]
fn lock_outs_are_reported() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let limiter = LoginLimiter::new(LIMITS, {
        let reported = reported.clone();
        move |lockout| reported.lock().unwrap().push(*lockout)
    });
    let now = Instant::now();
    let mut attacker = Attacker::on(&Arc::new(limiter), "10.0.0.1");
    attacker.be_locked_out(now);
    let expected = LockOut {
        address: attacker.address,
        duration: LIMITS.lockout,
        number: 1,
    };
    assert_eq!(*reported.lock().unwrap(), [expected]);
}

#[test]
fn limit_of_zero_failures_disables_the_limiter() {
    let limits = LoginLimits {
        failures_max: 0,
        ..LIMITS
    };
    let mut attacker = Attacker::on(&Arc::new(LoginLimiter::new(limits, |_| ())), "10.0.0.1");
    let now = Instant::now();
    for _ in 0..1000 {
        attacker.guess(now).unwrap();
    }
}
