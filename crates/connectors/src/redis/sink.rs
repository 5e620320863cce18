//! The action: a batch as a pipeline.
//!
//! A pipeline runs to its end: where one of its commands is to be sent again, those behind it have been done before it. Errors of
//! that kind (a cluster that moves a slot) are rare, and Redis knows no way to stop at them.

use std::sync::Arc;

use redis::{Cmd, Pipeline, RedisError, Value};

use super::client::{Numbered, RedisConnector};
use super::config::{RedisActionConfig, is_template};
use super::error::{describe, failure};
use crate::record::Record;
use crate::sink::{BoxFuture, Failure, Outcome, Sink, Template, all};

pub struct RedisSink {
    connector: Arc<RedisConnector>,
    /// The name first.
    command: Vec<String>,
    templates: Vec<Template>,
}

impl RedisSink {
    /// The errors name the fields.
    pub fn new(connector: Arc<RedisConnector>, config: &RedisActionConfig) -> Result<RedisSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(RedisSink {
            connector,
            command: config.command.clone(),
            templates: config.templates(),
        })
    }

    pub fn templates(&self) -> &[Template] {
        &self.templates
    }

    async fn send_all(&self, batch: &[Record]) -> Outcome {
        let mut connection = match self.connector.connection().await {
            Ok(connection) => connection,
            Err(reason) => return all(batch, Err(Failure::Away(reason))),
        };
        let mut pipeline = Pipeline::with_capacity(batch.len());
        for record in batch {
            pipeline.add_command(self.command(record));
        }
        let outcome = match connection.pipeline(&pipeline).await {
            Ok(answers) if answers.len() == batch.len() => answers.into_iter().map(result).collect(),
            Ok(answers) => {
                let reason = format!("the server gave {} answers to {} commands", answers.len(), batch.len());
                all(batch, Err(Failure::Away(reason)))
            }
            // The client gives up a pipeline as a whole when a node of a cluster is away, or sends commands elsewhere.
            Err(error) if connection.is_cluster() && !error.is_unrecoverable_error() => {
                self.send_each(&mut connection, batch).await
            }
            Err(error) => all(batch, Err(away(&error))),
        };
        if outcome.iter().any(|result| matches!(result, Err(Failure::Away(_)))) {
            // What is wrong may be wrong with this connection: a master that became a replica stays connected.
            self.connector.discard(&connection).await;
        }
        outcome
    }

    /// One after the other, to learn how each goes.
    async fn send_each(&self, connection: &mut Numbered, batch: &[Record]) -> Outcome {
        let mut outcome = Outcome::with_capacity(batch.len());
        for record in batch {
            let result = match outcome.last() {
                Some(Err(failure @ Failure::Away(_))) => Err(Failure::clone(failure)),
                _ => {
                    let answer = connection.command(&self.command(record)).await;
                    answer.map_err(|error| failure(&error)).and_then(result)
                }
            };
            outcome.push(result);
        }
        outcome
    }

    /// Null becomes an empty argument: Redis has no null.
    fn command(&self, record: &Record) -> Cmd {
        let mut command = Cmd::new();
        let mut field = 0;
        for (index, text) in self.command.iter().enumerate() {
            if index > 0 && is_template(text) {
                command.arg(record.field(field).unwrap_or_default());
                field += 1;
            } else {
                command.arg(text);
            }
        }
        command
    }

    /// Connects, and asks whether there is such a command.
    async fn check_all(&self) -> Result<(), String> {
        let mut connection = self.connector.connection().await?;
        let name = &self.command[0];
        let mut ask = redis::cmd("COMMAND");
        ask.arg("INFO").arg(name);
        match connection.command(&ask).await.and_then(Value::extract_error) {
            Ok(Value::Array(found)) if matches!(found.as_slice(), [Value::Nil]) => {
                Err(format!("command: the server does not know {name}"))
            }
            Ok(_) => Ok(()),
            // Who may not ask may still be allowed the command itself.
            Err(error) if matches!(failure(&error), Failure::Refused(_)) => Ok(()),
            Err(error) => {
                self.connector.discard(&connection).await;
                Err(describe(&error))
            }
        }
    }
}

fn away(error: &RedisError) -> Failure {
    Failure::Away(failure(error).reason().to_owned())
}

fn result(answer: Value) -> Result<(), Failure> {
    match answer.extract_error() {
        Ok(_) => Ok(()),
        Err(error) => Err(failure(&error)),
    }
}

impl Sink for RedisSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome> {
        Box::pin(self.send_all(batch))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.check_all())
    }
}
