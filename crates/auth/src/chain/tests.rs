//! C01 and what the chain promises beyond it.

use std::time::Instant;

use super::*;
use crate::password::PasswordHash;

fn users(names: &[(&str, &str, bool)]) -> Arc<Users> {
    let users = Users::empty().unwrap();
    for (name, password, is_superuser) in names {
        users
            .add(
                name,
                PasswordHash::salted_sha256("salt", &Password::new(*password)),
                *is_superuser,
            )
            .unwrap();
    }
    Arc::new(users)
}

fn chain(users: &Arc<Users>, policy: AnonymousPolicy) -> Chain {
    let verified = VerifiedPasswords::new(16).unwrap();
    Chain::new(vec![
        Arc::new(UsersProvider::new(users.clone(), verified)),
        Arc::new(AnonymousProvider { policy }),
    ])
}

fn credentials(user_name: Option<&str>, password: Option<&str>, address: &str) -> Credentials {
    Credentials {
        client_id: "client".into(),
        user_name: user_name.map(str::to_owned),
        password: password.map(Password::new),
        address: address.parse().unwrap(),
    }
}

const LOOPBACK: &str = "127.0.0.1";
const ELSEWHERE: &str = "192.0.2.7";

#[test]
fn each_kind_of_credentials_has_its_answer() {
    use DenyReason::*;
    let users = users(&[("alice", "secret", false), ("root", "toor", true)]);
    let chain = chain(&users, AnonymousPolicy::LoopbackOnly);
    let allow = Outcome::Allow { is_superuser: false };
    let table = [
        (Some("alice"), Some("secret"), ELSEWHERE, allow),
        (
            Some("root"),
            Some("toor"),
            ELSEWHERE,
            Outcome::Allow { is_superuser: true },
        ),
        (Some("alice"), Some("Secret"), ELSEWHERE, Outcome::Deny(WrongPassword)),
        (Some("alice"), Some(""), ELSEWHERE, Outcome::Deny(WrongPassword)),
        (Some("alice"), None, ELSEWHERE, Outcome::Deny(NoPassword)),
        (Some("nobody"), None, ELSEWHERE, Outcome::Deny(NoPassword)),
        (Some("nobody"), Some("secret"), ELSEWHERE, Outcome::Deny(UnknownUser)),
        (Some(""), Some("secret"), ELSEWHERE, Outcome::Deny(UnknownUser)),
        (Some(""), None, LOOPBACK, Outcome::Deny(NoPassword)),
        (None, Some("secret"), LOOPBACK, Outcome::Deny(UnknownUser)),
        (None, None, ELSEWHERE, Outcome::Deny(AnonymousRefused)),
        (None, None, LOOPBACK, allow),
        // Credentials that are wrong are never taken for none.
        (Some("alice"), Some("wrong"), LOOPBACK, Outcome::Deny(WrongPassword)),
        (Some("nobody"), Some("secret"), LOOPBACK, Outcome::Deny(UnknownUser)),
    ];
    for (user_name, password, address, expected) in table {
        let outcome = chain.authenticate(&credentials(user_name, password, address));
        assert_eq!(outcome, expected, "{user_name:?} {password:?} from {address}");
    }
}

#[test]
fn the_client_cannot_tell_an_unknown_user_from_a_wrong_password() {
    for reason in [DenyReason::UnknownUser, DenyReason::WrongPassword] {
        assert_eq!(reason.reason_code(), ReasonCode::BadUserNameOrPassword);
    }
    for reason in [DenyReason::NoPassword, DenyReason::AnonymousRefused] {
        assert_eq!(reason.reason_code(), ReasonCode::NotAuthorized);
    }
}

#[test]
fn the_anonymous_policy_decides_by_address() {
    let allow = Outcome::Allow { is_superuser: false };
    let deny = Outcome::Deny(DenyReason::AnonymousRefused);
    let table = [
        (AnonymousPolicy::LoopbackOnly, "127.8.9.1", allow),
        (AnonymousPolicy::LoopbackOnly, "::1", allow),
        (AnonymousPolicy::LoopbackOnly, "::ffff:127.0.0.1", allow),
        (AnonymousPolicy::LoopbackOnly, "::ffff:192.0.2.1", deny),
        (AnonymousPolicy::LoopbackOnly, "10.0.0.1", deny),
        (AnonymousPolicy::LoopbackOnly, "fe80::1", deny),
        (AnonymousPolicy::Never, "127.0.0.1", deny),
        (AnonymousPolicy::Always, "203.0.113.9", allow),
    ];
    for (policy, address, expected) in table {
        let outcome = AnonymousProvider { policy }.authenticate(&credentials(None, None, address));
        assert_eq!(outcome, expected, "{policy:?} from {address}");
    }
}

#[test]
fn an_empty_chain_refuses_everybody() {
    let chain = Chain::default();
    for (user_name, password) in [(None, None), (Some("alice"), Some("secret"))] {
        let outcome = chain.authenticate(&credentials(user_name, password, LOOPBACK));
        assert!(matches!(outcome, Outcome::Deny(_)));
    }
}

#[test]
fn a_later_provider_may_know_whom_the_first_does_not() {
    let first = UsersProvider::new(users(&[("alice", "secret", false)]), VerifiedPasswords::new(0).unwrap());
    let second = UsersProvider::new(
        users(&[("alice", "other", true), ("bob", "pw", false)]),
        VerifiedPasswords::new(0).unwrap(),
    );
    let chain = Chain::new(vec![Arc::new(first), Arc::new(second)]);
    let outcome = |name, password| chain.authenticate(&credentials(Some(name), Some(password), ELSEWHERE));
    assert_eq!(outcome("bob", "pw"), Outcome::Allow { is_superuser: false });
    // The first provider that knows a user decides.
    assert_eq!(outcome("alice", "other"), Outcome::Deny(DenyReason::WrongPassword));
}

#[test]
fn changes_at_run_time_count_at_once_in_spite_of_the_cache() {
    let users = users(&[("alice", "secret", false)]);
    let chain = chain(&users, AnonymousPolicy::Never);
    let outcome = |password| chain.authenticate(&credentials(Some("alice"), Some(password), ELSEWHERE));
    let allow = Outcome::Allow { is_superuser: false };
    assert_eq!((outcome("secret"), outcome("secret")), (allow, allow));
    users
        .set_password("alice", PasswordHash::salted_sha256("salt", &Password::new("changed")))
        .unwrap();
    assert_eq!(outcome("secret"), Outcome::Deny(DenyReason::WrongPassword));
    assert_eq!(outcome("changed"), allow);
    users.set_superuser("alice", true).unwrap();
    assert_eq!(outcome("changed"), Outcome::Allow { is_superuser: true });
    users.remove("alice").unwrap();
    assert_eq!(outcome("changed"), Outcome::Deny(DenyReason::UnknownUser));
}

/// The least of several runs, and a wide margin, so that a busy machine does not decide: without a decoy the factor is a
/// thousand.
#[test]
fn an_unknown_user_costs_as_much_as_a_wrong_password() {
    let users = Users::empty().unwrap();
    users
        .add("alice", PasswordHash::create(&Password::new("secret")).unwrap(), false)
        .unwrap();
    let chain = chain(&Arc::new(users), AnonymousPolicy::Never);
    let least = |name: &str| {
        let cost = |_| {
            let start = Instant::now();
            let outcome = chain.authenticate(&credentials(Some(name), Some("wrong"), ELSEWHERE));
            assert!(matches!(outcome, Outcome::Deny(_)));
            start.elapsed()
        };
        (0..4).map(cost).min().unwrap()
    };
    let (known, unknown) = (least("alice"), least("mallory"));
    assert!(unknown > known / 8 && known > unknown / 8, "{known:?} and {unknown:?}");
}

#[test]
fn a_decoy_never_lets_anybody_in_nor_fills_the_cache() {
    let users = users(&[("alice", "secret", true)]);
    let provider = UsersProvider::new(users, VerifiedPasswords::new(16).unwrap());
    // With one user every unknown name gets that user's hash as its decoy, and this is its password.
    let outcome = provider.authenticate(&credentials(Some("mallory"), Some("secret"), ELSEWHERE));
    assert_eq!(outcome, Outcome::Ignore);
    assert!(provider.verified.is_empty());
}

#[test]
fn two_hundred_wrong_passwords_lock_nobody_out() {
    let users = users(&[("alice", "secret", false)]);
    let chain = chain(&users, AnonymousPolicy::Never);
    for n in 0..200 {
        let wrong = format!("wrong-{n}");
        let outcome = chain.authenticate(&credentials(Some("alice"), Some(&wrong), ELSEWHERE));
        assert_eq!(outcome, Outcome::Deny(DenyReason::WrongPassword));
    }
    let outcome = chain.authenticate(&credentials(Some("alice"), Some("secret"), ELSEWHERE));
    assert_eq!(outcome, Outcome::Allow { is_superuser: false });
}

#[test]
fn credentials_print_no_password() {
    let printed = format!("{:?}", credentials(Some("alice"), Some("secret"), ELSEWHERE));
    assert!(printed.contains("alice") && !printed.contains("secret"), "{printed}");
}
