//! Access of clients with a mountpoint: all clients of a run have the same one. Clients and the oracle do not see it;
//! the node, its journal and the messages of the server contain it.

use std::sync::Arc;

use broker::{
    AccessControl, AuthOutcome, ClientIdentity, ClientLogin, ConnectCredentials, Mountpoint, OpenAccess, SessionAccess,
};

const MOUNTPOINT: &str = "tenants/t/";

/// Returns the access of clients, with or without the mountpoint.
pub fn access(has_mountpoint: bool) -> Arc<dyn AccessControl> {
    match has_mountpoint {
        true => Arc::new(MountedClients),
        false => Arc::new(OpenAccess),
    }
}

/// Returns the topic of a message that the server publishes for clients that see `topic`.
pub fn full_topic(topic: String, has_mountpoint: bool) -> String {
    match has_mountpoint {
        true => format!("{MOUNTPOINT}{topic}"),
        false => topic,
    }
}

struct MountedClients;

impl AccessControl for MountedClients {
    fn authenticate_now(&self, _: &ConnectCredentials) -> Option<AuthOutcome> {
        Some(AuthOutcome::Allow(Box::new(ClientLogin {
            mountpoint: Some(Mountpoint::new(MOUNTPOINT).expect("the prefix consists of whole levels")),
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
