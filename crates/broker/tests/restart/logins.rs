//! Tests what the server knows about the login of a session after a restart: that it had a grant, not which one.

use std::sync::{Arc, Mutex};

use tidewire_broker::durable::record::RecordPosition;
use tidewire_broker::*;

use super::node::Node;
use super::start_with_access;

struct NoData;

impl LoginData for NoData {}

/// Gives clients whose id begins with `granted` a grant, and records the grants for which it is asked for rights.
#[derive(Default)]
struct Grants(Mutex<Vec<(Box<str>, LoginGrant)>>);

impl AccessControl for Grants {
    fn authenticate_now(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        Some(AuthOutcome::Allow(Box::new(ClientLogin {
            grant: match credentials.client_id.starts_with("granted") {
                true => LoginGrant::Of(Arc::new(NoData)),
                false => LoginGrant::None,
            },
            ..ClientLogin::default()
        })))
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, who: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        self.0.lock().unwrap().push((who.client_id.clone(), who.grant.clone()));
        None
    }
}

#[test]
fn grant_of_a_session_is_forgotten_at_a_start() {
    let mut node = Node::with_access("grants", ShardConfig::default(), Arc::<Grants>::default());
    for client_id in ["granted", "plain"] {
        node.connect(client_id, false, 3600);
    }
    node.end_tick();
    let directory = node.crash();
    let grants = Arc::<Grants>::default();
    drop(start_with_access(&directory, grants.clone()));
    let mut asked = grants.0.lock().unwrap().clone();
    asked.sort_by(|(this, _), (that, _)| this.cmp(that));
    let expected = [
        ("granted".into(), LoginGrant::Forgotten),
        ("plain".into(), LoginGrant::None),
    ];
    assert_eq!(asked, expected);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Gives every client this prefix.
struct Prefixed(Option<&'static str>);

impl AccessControl for Prefixed {
    fn authenticate_now(&self, _: &ConnectCredentials) -> Option<AuthOutcome> {
        Some(AuthOutcome::Allow(Box::new(ClientLogin {
            mountpoint: self.0.map(|prefix| Mountpoint::new(prefix).unwrap()),
            ..ClientLogin::default()
        })))
    }

    fn supports_auth_method(&self, _: &str) -> bool {
        false
    }

    fn session(&self, _: &ClientIdentity) -> Option<Arc<dyn SessionAccess>> {
        None
    }
}

#[test]
fn session_has_its_mountpoint_after_a_start() {
    for (name, after, is_resumed) in [
        ("same", Some("tenants/acme/"), true),
        ("other", Some("tenants/blue/"), false),
        ("none", None, false),
    ] {
        for has_checkpoint in [false, true] {
            let access = Arc::new(Prefixed(Some("tenants/acme/")));
            let mut node = Node::with_access(&format!("mountpoint-{name}"), ShardConfig::default(), access);
            let reader = node.connect("reader", false, 3600);
            node.subscribe(reader, "t");
            node.end_tick();
            let publisher = node.connect("publisher", true, 0);
            node.publish(publisher, 1);
            node.end_tick();
            let from = match has_checkpoint {
                true => node.checkpoint(),
                false => RecordPosition(0),
            };
            let directory = node.directory().to_owned();
            let access = Arc::new(Prefixed(after));
            let mut node = node.restart_with_access(ShardConfig::default(), from, access);
            let reader = node.connect("reader", false, 3600);
            node.end_tick();
            node.read();
            node.end_tick();
            let expected = vec!["t"; usize::from(is_resumed)];
            assert_eq!(node.topics_sent(reader), expected, "{name} {has_checkpoint}");
            let subscriptions = node.shard.inspect().client("reader").unwrap().subscriptions;
            assert_eq!(subscriptions, usize::from(is_resumed), "{name} {has_checkpoint}");
            drop(node);
            std::fs::remove_dir_all(&directory).unwrap();
        }
    }
}
