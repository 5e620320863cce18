//! One connection to a server. It has one command at a time.
//!
//! After an error the connection must be dropped: the answer of the old command could follow.

use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::bson::{Bson, BsonDocument};
use super::error::MongoError;
use super::message::{decode_message, encode_message, message_length};
use super::scram::{ScramLogin, ScramMechanism, nonce};
use crate::secret::Secret;
use crate::stream::ConnectorStream;

/// Code of a server that does not know a command.
const COMMAND_NOT_FOUND: f64 = 59.0;
/// Messages of a login. SCRAM has three; the last one may be empty.
const LOGIN_STEPS_MAX: u32 = 4;

pub(super) struct MongoConnection {
    stream: ConnectorStream,
    /// Address of the server, for errors.
    pub server: String,
    /// Time of the last command.
    pub used: Instant,
    /// Whether it has been idle, so that the server may have closed it.
    pub was_idle: bool,
    /// Received bytes that are not decoded.
    received: Vec<u8>,
    last_id: i32,
}

/// The user of the connections.
#[derive(Clone)]
pub(super) struct MongoUser {
    pub name: String,
    pub password: Secret,
    /// Database that contains the user.
    pub source: String,
}

impl MongoConnection {
    pub fn new(stream: ConnectorStream, server: String) -> MongoConnection {
        MongoConnection {
            stream,
            server,
            used: Instant::now(),
            was_idle: false,
            received: Vec::new(),
            last_id: 0,
        }
    }

    /// Returns the role of the server, and the mechanisms of the user.
    pub async fn hello(&mut self, user: Option<&MongoUser>) -> Result<BsonDocument, MongoError> {
        let driver = BsonDocument::new()
            .with("name", "tidewire")
            .with("version", env!("CARGO_PKG_VERSION"));
        let system = BsonDocument::new().with("type", std::env::consts::OS);
        let client = BsonDocument::new().with("driver", driver).with("os", system);
        let command = |name: &str| {
            let mut command = BsonDocument::new().with(name, 1).with("client", client.clone());
            if let Some(user) = user {
                command = command.with("saslSupportedMechs", format!("{}.{}", user.source, user.name));
            }
            command.with("$db", "admin")
        };
        let answer = self.exchange(command("hello")).await?;
        if answer.get("code").and_then(Bson::as_f64) != Some(COMMAND_NOT_FOUND) {
            return checked(answer);
        }
        // MongoDB before 4.4.2 knows only the old name.
        checked(self.exchange(command("isMaster")).await?)
    }

    /// Logs in. `hello` is the answer of [`MongoConnection::hello`]. The error is for operators.
    pub async fn log_in(&mut self, user: &MongoUser, hello: &BsonDocument) -> Result<(), String> {
        let mechanisms = hello.array("saslSupportedMechs");
        // Old servers return no list, and have only SHA-1.
        let mechanism = match mechanisms.contains(&Bson::from(ScramMechanism::Sha256.name())) {
            true => ScramMechanism::Sha256,
            false => ScramMechanism::Sha1,
        };
        let login = ScramLogin::new(mechanism, &user.name, user.password.expose(), nonce()?)?;
        let start = BsonDocument::new()
            .with("saslStart", 1)
            .with("mechanism", mechanism.name())
            .with("payload", Bson::Binary(login.first_message().into_bytes()))
            .with("options", BsonDocument::new().with("skipEmptyExchange", true))
            .with("$db", user.source.as_str());
        let answer = self.login_step(start).await?;
        let proof = login.answer(payload(&answer)?)?;
        let mut answer = self.continue_login(user, &answer, proof.message.as_bytes()).await?;
        proof.check(payload(&answer)?)?;
        for _ in 0..LOGIN_STEPS_MAX {
            if answer.is_true("done") {
                return Ok(());
            }
            answer = self.continue_login(user, &answer, b"").await?;
        }
        Err("the server does not finish the login".to_owned())
    }

    async fn continue_login(
        &mut self,
        user: &MongoUser,
        answer: &BsonDocument,
        payload: &[u8],
    ) -> Result<BsonDocument, String> {
        let id = answer.get("conversationId").cloned().unwrap_or(Bson::Int32(1));
        let command = BsonDocument::new()
            .with("saslContinue", 1)
            .with("conversationId", id)
            .with("payload", Bson::Binary(payload.to_vec()))
            .with("$db", user.source.as_str());
        self.login_step(command).await
    }

    async fn login_step(&mut self, command: BsonDocument) -> Result<BsonDocument, String> {
        let answer = self.exchange(command).await.and_then(checked);
        answer.map_err(|error| format!("the login with user and password failed: {error}"))
    }

    /// Executes a command and returns its answer.
    pub async fn command(&mut self, command: BsonDocument) -> Result<BsonDocument, MongoError> {
        checked(self.exchange(command).await?)
    }

    async fn exchange(&mut self, command: BsonDocument) -> Result<BsonDocument, MongoError> {
        self.last_id = self.last_id.checked_add(1).unwrap_or(1);
        let message = encode_message(self.last_id, &command);
        let sent = async {
            self.stream.write_all(&message).await?;
            self.stream.flush().await
        };
        sent.await.map_err(|error| lost(&error))?;
        let (answered, document) = self.receive().await?;
        match answered == self.last_id {
            true => Ok(document),
            false => Err(MongoError::Unusable("the answer belongs to another command".to_owned())),
        }
    }

    async fn receive(&mut self) -> Result<(i32, BsonDocument), MongoError> {
        loop {
            let length = message_length(&self.received)?;
            if let Some(length) = length.filter(|length| self.received.len() >= *length) {
                let message = decode_message(&self.received[..length])?;
                self.received.drain(..length);
                self.used = Instant::now();
                return Ok(message);
            }
            let read = self.stream.read_buf(&mut self.received).await;
            if read.map_err(|error| lost(&error))? == 0 {
                return Err(MongoError::Lost("the server has closed the connection".to_owned()));
            }
        }
    }
}

fn checked(answer: BsonDocument) -> Result<BsonDocument, MongoError> {
    match answer.is_true("ok") {
        true => Ok(answer),
        false => Err(MongoError::of_answer(&answer)),
    }
}

fn payload(answer: &BsonDocument) -> Result<&[u8], String> {
    match answer.get("payload") {
        Some(Bson::Binary(bytes)) => Ok(bytes),
        _ => Err("the server's answer to the login has no payload".to_owned()),
    }
}

fn lost(error: &std::io::Error) -> MongoError {
    MongoError::Lost(format!("the connection is lost: {error}"))
}
