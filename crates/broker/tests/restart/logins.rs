//! Tests what the server knows about the login of a session after a restart: that it had a grant, not which one.

use std::sync::{Arc, Mutex};

use tidewire_broker::*;

use super::node::Node;
use super::start_with_access;

/// Gives clients whose id begins with `granted` a grant, and records the grants for which it is asked for rights.
#[derive(Default)]
struct Grants(Mutex<Vec<(Box<str>, LoginGrant)>>);

impl AccessControl for Grants {
    fn authenticate_now(&self, credentials: &ConnectCredentials) -> Option<AuthOutcome> {
        Some(AuthOutcome::Allow(Box::new(ClientLogin {
            grant: match credentials.client_id.starts_with("granted") {
                true => LoginGrant::Of(Arc::new(())),
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
