//! One connection to a server. It has one request at a time.
//!
//! After an error the connection must be dropped: the answer of the old request could follow.

use std::sync::Arc;

use rustls::ClientConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::error::LdapError;
use super::message::{
    LdapMessage, LdapResponse, LdapResult, LdapSearch, LdapSearchResult, bind_request, decode, message_length,
    search_request, start_tls_request,
};
use crate::stream::ConnectorStream;

/// Maximum number of references and superfluous entries that a search skips.
const SKIPPED_MAX: usize = 1000;
/// Maximum number of bytes of all messages that answer a search.
const SEARCH_BYTES_MAX: usize = 4 << 20;

pub(super) struct LdapConnection {
    stream: ConnectorStream,
    /// Received bytes that are not decoded.
    received: Vec<u8>,
    /// Bytes of the messages that answer the current request.
    answer_bytes: usize,
    last_id: u32,
}

impl LdapConnection {
    pub fn new(stream: ConnectorStream) -> LdapConnection {
        LdapConnection {
            stream,
            received: Vec::new(),
            answer_bytes: 0,
            last_id: 0,
        }
    }

    /// Asks the server for TLS, and makes the handshake.
    pub async fn start_tls(mut self, config: Arc<ClientConfig>, host: &str) -> Result<LdapConnection, LdapError> {
        let id = self.next_id();
        self.send(&start_tls_request(id)).await?;
        match self.receive(id).await? {
            LdapResponse::Extended(result) if result.is_success() => {}
            LdapResponse::Extended(result) => {
                return Err(LdapError::Unusable(format!("the server refuses StartTLS: {result}")));
            }
            _ => return Err(unexpected()),
        }
        // An attacker could insert answers in front of the encrypted ones.
        if !self.received.is_empty() {
            let problem = "unencrypted data follows the answer to StartTLS";
            return Err(LdapError::Unusable(problem.to_owned()));
        }
        let stream = self.stream.start_tls(config, host).await.map_err(LdapError::Lost)?;
        Ok(LdapConnection { stream, ..self })
    }

    /// Logs in with a name and a password, also if the connection has another login.
    pub async fn bind(&mut self, dn: &str, password: &[u8]) -> Result<LdapResult, LdapError> {
        let id = self.next_id();
        self.send(&bind_request(id, dn, password)).await?;
        match self.receive(id).await? {
            LdapResponse::Bind(result) => Ok(result),
            _ => Err(unexpected()),
        }
    }

    pub async fn search(&mut self, search: &LdapSearch) -> Result<LdapSearchResult, LdapError> {
        let id = self.next_id();
        self.send(&search_request(id, search)).await?;
        let mut entries = Vec::new();
        let mut skipped = 0;
        loop {
            match self.receive(id).await? {
                LdapResponse::Entry(entry) if entries.len() <= search.limit as usize => entries.push(entry),
                LdapResponse::Entry(_) | LdapResponse::Reference => skipped += 1,
                LdapResponse::SearchDone(result) => return Ok(LdapSearchResult { entries, result }),
                _ => return Err(unexpected()),
            }
            if skipped > SKIPPED_MAX {
                let problem = "the server ignores the size limit of a search";
                return Err(LdapError::Unusable(problem.to_owned()));
            }
            if self.answer_bytes > SEARCH_BYTES_MAX {
                let problem = "the answer to a search is longer than 4 MiB";
                return Err(LdapError::Unusable(problem.to_owned()));
            }
        }
    }

    fn next_id(&mut self) -> u32 {
        self.answer_bytes = 0;
        self.last_id = match self.last_id {
            last if last >= i32::MAX as u32 => 1,
            last => last + 1,
        };
        self.last_id
    }

    async fn send(&mut self, request: &[u8]) -> Result<(), LdapError> {
        let sent = async {
            self.stream.write_all(request).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|error| lost(&error))
    }

    /// Receives the next message of the request `id`.
    async fn receive(&mut self, id: u32) -> Result<LdapResponse, LdapError> {
        match self.message().await? {
            LdapMessage { id: found, response } if found == id => Ok(response),
            LdapMessage {
                id: 0,
                response: LdapResponse::Extended(result),
            } => Err(LdapError::Lost(format!("the server ends the connection: {result}"))),
            LdapMessage { id: found, .. } => Err(LdapError::Unusable(format!(
                "the answer has the message ID {found} instead of {id}"
            ))),
        }
    }

    async fn message(&mut self) -> Result<LdapMessage, LdapError> {
        loop {
            let length = message_length(&self.received)?;
            if let Some(length) = length.filter(|length| self.received.len() >= *length) {
                let message = decode(&self.received[..length])?;
                self.received.drain(..length);
                self.answer_bytes += length;
                return Ok(message);
            }
            let read = self.stream.read_buf(&mut self.received).await;
            if read.map_err(|error| lost(&error))? == 0 {
                return Err(LdapError::Lost("the server has closed the connection".to_owned()));
            }
        }
    }
}

fn lost(error: &std::io::Error) -> LdapError {
    LdapError::Lost(format!("the connection is lost: {error}"))
}

fn unexpected() -> LdapError {
    LdapError::Unusable("the answer belongs to another kind of request".to_owned())
}
