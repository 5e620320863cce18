//! An authenticated client before it has a session.

use mqtt::Connect;

use crate::access::{AcceptedClient, ClientLogin};
use crate::inbox::InboxClient;
use crate::mountpoint::Mountpoint;

/// An authenticated client.
pub(crate) enum Login {
    Client {
        client_id: Box<str>,
        login: Box<ClientLogin>,
    },
    Inbox(Box<InboxClient>),
}

impl Login {
    /// Returns the CONNECT with which the client is accepted, and the identity of the client.
    pub fn terms<'a>(&'a self, connect: &Connect<'a>) -> (Connect<'a>, AcceptedClient<'a>) {
        match self {
            Login::Client { client_id, login } => {
                let user_name = login.user_name.as_deref().or(connect.user_name);
                let connect = Connect {
                    user_name,
                    ..connect.clone()
                };
                let client = AcceptedClient {
                    grant: &login.grant,
                    ..AcceptedClient::of(client_id, login.is_superuser)
                };
                (connect, client)
            }
            Login::Inbox(client) => client.terms(connect),
        }
    }

    /// Returns the Authentication Data for CONNACK.
    pub fn data(&self) -> Option<&[u8]> {
        match self {
            Login::Client { login, .. } => login.data.as_deref(),
            Login::Inbox(_) => None,
        }
    }

    /// Returns the prefix of the client's topics. Clients of the inbox have none.
    pub fn mountpoint(&self) -> Option<&Mountpoint> {
        self.client()?.mountpoint.as_ref()
    }

    /// Returns the login of a client that does not use the inbox.
    pub fn client(&self) -> Option<&ClientLogin> {
        match self {
            Login::Client { login, .. } => Some(login),
            Login::Inbox(_) => None,
        }
    }
}
