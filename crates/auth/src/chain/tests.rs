//! Tests of the authentication chain.

use std::time::Instant;

use super::*;
use crate::password::PasswordHash;

/// The part of an outcome that the tests compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allow { is_superuser: bool },
    Deny(DenyReason),
    Ignore,
}

fn verdict(outcome: &ProviderOutcome) -> Verdict {
    match outcome {
        ProviderOutcome::Allow(login) => Verdict::Allow {
            is_superuser: login.is_superuser,
        },
        ProviderOutcome::Deny(reason) => Verdict::Deny(*reason),
        ProviderOutcome::Ignore => Verdict::Ignore,
    }
}

/// Asks a chain of local providers.
fn ask(chain: &ProviderChain, credentials: &Credentials) -> Verdict {
    match chain.advance(0, credentials) {
        ChainStep::Decided(outcome) => verdict(&outcome),
        ChainStep::Ask { .. } => panic!("the chain has a remote provider"),
    }
}

fn local(provider: impl Provider + 'static) -> ChainLink {
    ChainLink::Local(Arc::new(provider))
}

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

fn chain(users: &Arc<Users>, policy: AnonymousPolicy) -> ProviderChain {
    let verified = VerifiedPasswords::new(16).unwrap();
    ProviderChain::new(vec![
        local(UsersProvider::new(users.clone(), verified)),
        local(AnonymousProvider { policy }),
    ])
}

fn credentials(user_name: Option<&str>, password: Option<&str>, address: &str) -> Credentials {
    Credentials {
        client_id: "client".into(),
        user_name: user_name.map(str::to_owned),
        password: password.map(Password::new),
        address: address.parse().unwrap(),
        certificate_common_name: None,
        certificate_subject: None,
        action: None,
    }
}

const LOOPBACK: &str = "127.0.0.1";
const REMOTE: &str = "192.0.2.7";

#[test]
fn credentials_decide_the_outcome() {
    use DenyReason::*;
    let users = users(&[("alice", "secret", false), ("root", "toor", true)]);
    let chain = chain(&users, AnonymousPolicy::LoopbackOnly);
    let allow = Verdict::Allow { is_superuser: false };
    let table = [
        (Some("alice"), Some("secret"), REMOTE, allow),
        (
            Some("root"),
            Some("toor"),
            REMOTE,
            Verdict::Allow { is_superuser: true },
        ),
        (Some("alice"), Some("Secret"), REMOTE, Verdict::Deny(WrongPassword)),
        (Some("alice"), Some(""), REMOTE, Verdict::Deny(WrongPassword)),
        (Some("alice"), None, REMOTE, Verdict::Deny(NoPassword)),
        (Some("nobody"), None, REMOTE, Verdict::Deny(NoPassword)),
        (Some("nobody"), Some("secret"), REMOTE, Verdict::Deny(UnknownUser)),
        (Some(""), Some("secret"), REMOTE, Verdict::Deny(UnknownUser)),
        (Some(""), None, LOOPBACK, Verdict::Deny(NoPassword)),
        (None, Some("secret"), LOOPBACK, Verdict::Deny(UnknownUser)),
        (None, None, REMOTE, Verdict::Deny(AnonymousRefused)),
        (None, None, LOOPBACK, allow),
        // Wrong credentials never count as anonymous.
        (Some("alice"), Some("wrong"), LOOPBACK, Verdict::Deny(WrongPassword)),
        (Some("nobody"), Some("secret"), LOOPBACK, Verdict::Deny(UnknownUser)),
    ];
    for (user_name, password, address, expected) in table {
        let outcome = ask(&chain, &credentials(user_name, password, address));
        assert_eq!(outcome, expected, "{user_name:?} {password:?} from {address}");
    }
}

#[test]
fn reason_code_hides_whether_a_user_exists() {
    for reason in [DenyReason::UnknownUser, DenyReason::WrongPassword] {
        assert_eq!(reason.reason_code(), ReasonCode::BadUserNameOrPassword);
    }
    for reason in [DenyReason::NoPassword, DenyReason::AnonymousRefused] {
        assert_eq!(reason.reason_code(), ReasonCode::NotAuthorized);
    }
}

#[test]
fn anonymous_policy_decides_by_address() {
    let allow = Verdict::Allow { is_superuser: false };
    let deny = Verdict::Deny(DenyReason::AnonymousRefused);
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
        assert_eq!(verdict(&outcome), expected, "{policy:?} from {address}");
    }
}

#[test]
fn empty_chain_denies_all_clients() {
    let chain = ProviderChain::default();
    for (user_name, password) in [(None, None), (Some("alice"), Some("secret"))] {
        let outcome = ask(&chain, &credentials(user_name, password, LOOPBACK));
        assert!(matches!(outcome, Verdict::Deny(_)));
    }
}

#[test]
fn later_provider_checks_unknown_users() {
    let first = UsersProvider::new(users(&[("alice", "secret", false)]), VerifiedPasswords::new(0).unwrap());
    let second = UsersProvider::new(
        users(&[("alice", "other", true), ("bob", "pw", false)]),
        VerifiedPasswords::new(0).unwrap(),
    );
    let chain = ProviderChain::new(vec![local(first), local(second)]);
    let outcome = |name, password| ask(&chain, &credentials(Some(name), Some(password), REMOTE));
    assert_eq!(outcome("bob", "pw"), Verdict::Allow { is_superuser: false });
    // The first provider that knows a user decides.
    assert_eq!(outcome("alice", "other"), Verdict::Deny(DenyReason::WrongPassword));
}

#[test]
fn run_time_changes_bypass_the_cache() {
    let users = users(&[("alice", "secret", false)]);
    let chain = chain(&users, AnonymousPolicy::Never);
    let outcome = |password| ask(&chain, &credentials(Some("alice"), Some(password), REMOTE));
    let allow = Verdict::Allow { is_superuser: false };
    assert_eq!((outcome("secret"), outcome("secret")), (allow, allow));
    users
        .set_password("alice", PasswordHash::salted_sha256("salt", &Password::new("changed")))
        .unwrap();
    assert_eq!(outcome("secret"), Verdict::Deny(DenyReason::WrongPassword));
    assert_eq!(outcome("changed"), allow);
    users.set_superuser("alice", true).unwrap();
    assert_eq!(outcome("changed"), Verdict::Allow { is_superuser: true });
    users.remove("alice").unwrap();
    assert_eq!(outcome("changed"), Verdict::Deny(DenyReason::UnknownUser));
}

/// Takes the minimum of several runs and a wide margin, so that load on the machine does not matter: without a decoy
/// the factor is a thousand.
#[test]
fn unknown_user_takes_as_long_as_a_wrong_password() {
    let users = Users::empty().unwrap();
    users
        .add("alice", PasswordHash::create(&Password::new("secret")).unwrap(), false)
        .unwrap();
    let chain = chain(&Arc::new(users), AnonymousPolicy::Never);
    let least = |name: &str| {
        let cost = |_| {
            let start = Instant::now();
            let outcome = ask(&chain, &credentials(Some(name), Some("wrong"), REMOTE));
            assert!(matches!(outcome, Verdict::Deny(_)));
            start.elapsed()
        };
        (0..4).map(cost).min().unwrap()
    };
    let (known, unknown) = (least("alice"), least("mallory"));
    assert!(unknown > known / 8 && known > unknown / 8, "{known:?} and {unknown:?}");
}

#[test]
fn decoy_neither_allows_nor_fills_the_cache() {
    let users = users(&[("alice", "secret", true)]);
    let provider = UsersProvider::new(users, VerifiedPasswords::new(16).unwrap());
    // With a single user, every unknown name gets that user's hash as its decoy, and this is the user's password.
    let outcome = provider.authenticate(&credentials(Some("mallory"), Some("secret"), REMOTE));
    assert_eq!(verdict(&outcome), Verdict::Ignore);
    assert!(provider.verified.is_empty());
}

#[test]
fn wrong_passwords_do_not_lock_the_user() {
    let users = users(&[("alice", "secret", false)]);
    let chain = chain(&users, AnonymousPolicy::Never);
    for n in 0..200 {
        let wrong = format!("wrong-{n}");
        let outcome = ask(&chain, &credentials(Some("alice"), Some(&wrong), REMOTE));
        assert_eq!(outcome, Verdict::Deny(DenyReason::WrongPassword));
    }
    let outcome = ask(&chain, &credentials(Some("alice"), Some("secret"), REMOTE));
    assert_eq!(outcome, Verdict::Allow { is_superuser: false });
}

#[test]
fn credentials_print_no_password() {
    let printed = format!("{:?}", credentials(Some("alice"), Some("secret"), REMOTE));
    assert!(printed.contains("alice") && !printed.contains("secret"), "{printed}");
}

/// A remote provider that is asked for every client.
struct Elsewhere;

impl RemoteProvider for Elsewhere {
    fn authenticate(self: Arc<Self>, _: Arc<Credentials>) -> ProviderFuture {
        Box::pin(std::future::ready(ProviderOutcome::Ignore))
    }

    fn authenticate_now(&self, _: &Credentials) -> Option<ProviderOutcome> {
        None
    }
}

#[test]
fn chain_continues_after_a_remote_provider() {
    let users = users(&[("alice", "secret", false)]);
    let provider = |users: &Arc<Users>| UsersProvider::new(users.clone(), VerifiedPasswords::new(16).unwrap());
    let chain = ProviderChain::new(vec![
        local(AnonymousProvider::default()),
        ChainLink::Remote(Arc::new(Elsewhere)),
        local(provider(&users)),
    ]);
    let anonymous = credentials(None, None, LOOPBACK);
    assert_eq!(ask(&chain, &anonymous), Verdict::Allow { is_superuser: false });
    let alice = credentials(Some("alice"), Some("secret"), REMOTE);
    let ChainStep::Ask { next, .. } = chain.advance(0, &alice) else {
        panic!("the remote provider is asked first");
    };
    let ChainStep::Decided(outcome) = chain.advance(next, &alice) else {
        panic!("no further remote provider");
    };
    assert_eq!(verdict(&outcome), Verdict::Allow { is_superuser: false });
    // The password is in the cache now, but the remote provider has to be asked before.
    assert!(chain.authenticate_now(&alice).is_none());
}

#[test]
fn unknown_users_are_admitted_like_anonymous_clients() {
    let users = users(&[("alice", "secret", true)]);
    let chain = ProviderChain::new(vec![
        local(UnknownUsersProvider {
            policy: AnonymousPolicy::LoopbackOnly,
            users: users.clone(),
        }),
        local(UsersProvider::new(users, VerifiedPasswords::new(0).unwrap())),
    ]);
    let allow = Verdict::Allow { is_superuser: false };
    let deny = Verdict::Deny;
    for (name, password, address, expected) in [
        ("bob", Some("any"), LOOPBACK, allow),
        ("bob", None, LOOPBACK, allow),
        ("bob", Some("any"), REMOTE, deny(DenyReason::UnknownUser)),
        ("alice", Some("wrong"), LOOPBACK, deny(DenyReason::WrongPassword)),
        ("alice", None, LOOPBACK, deny(DenyReason::NoPassword)),
        ("alice", Some("secret"), REMOTE, Verdict::Allow { is_superuser: true }),
    ] {
        let credentials = credentials(Some(name), password, address);
        assert_eq!(ask(&chain, &credentials), expected, "{name} {password:?}");
        if name == "bob" && address == LOOPBACK {
            assert_eq!(
                chain.authenticate_now(&credentials).map(|now| verdict(&now)),
                Some(allow)
            );
        }
    }
}
