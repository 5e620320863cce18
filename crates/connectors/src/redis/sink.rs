//! The Redis action: sends a batch as a pipeline.
//!
//! A pipeline always runs to its end. If one of its commands must be retried, later commands have already run. Such
//! errors, for example a slot that moves in a cluster, are rare, and Redis cannot stop a pipeline at them.

use std::sync::Arc;

use redis::{Cmd, Pipeline, RedisError, Value};
use serde_json::Value as Json;

use super::client::{NumberedConnection, RedisConnector};
use super::config::{RedisActionConfig, is_template};
use super::error::{describe, failure};
use crate::record::Record;
use crate::sink::{BatchOutcome, BoxFuture, DeliveryFailure, FieldTemplate, Sink, all};

pub struct RedisSink {
    connector: Arc<RedisConnector>,
    /// The command name and its arguments.
    command: Vec<String>,
    /// Index of the argument that is a list of fields and values.
    field_list: Option<usize>,
    templates: Vec<FieldTemplate>,
}

impl RedisSink {
    /// Creates the sink. The errors name the fields.
    pub fn new(connector: Arc<RedisConnector>, config: &RedisActionConfig) -> Result<RedisSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(RedisSink {
            connector,
            command: config.command.clone(),
            field_list: config.field_list(),
            templates: config.templates(),
        })
    }

    pub fn templates(&self) -> &[FieldTemplate] {
        &self.templates
    }

    async fn send_all(&self, batch: &[Record]) -> BatchOutcome {
        let mut connection = match self.connector.connection().await {
            Ok(connection) => connection,
            Err(reason) => return all(batch, Err(DeliveryFailure::Unreachable(reason))),
        };
        let mut pipeline = Pipeline::with_capacity(batch.len());
        let mut sent = 0;
        let built: Vec<Result<(), DeliveryFailure>> = batch
            .iter()
            .map(|record| {
                pipeline.add_command(self.command(record)?);
                sent += 1;
                Ok(())
            })
            .collect();
        if sent == 0 {
            return built;
        }
        let outcome = match connection.pipeline(&pipeline).await {
            Ok(answers) if answers.len() == sent => {
                let mut answers = answers.into_iter();
                let results = built
                    .into_iter()
                    .map(|built| built.and_then(|()| answers.next().map_or(Ok(()), result)));
                results.collect()
            }
            Ok(answers) => {
                let reason = format!("the server sent {} responses to {sent} commands", answers.len());
                all(batch, Err(DeliveryFailure::Unreachable(reason)))
            }
            // The client fails a whole pipeline when a cluster node is unreachable or commands are redirected.
            Err(error) if connection.is_cluster() && !error.is_unrecoverable_error() => {
                self.send_each(&mut connection, batch).await
            }
            Err(error) => all(batch, Err(unreachable(&error))),
        };
        if outcome
            .iter()
            .any(|result| matches!(result, Err(DeliveryFailure::Unreachable(_))))
        {
            // The connection itself may be the cause: after a failover it may still lead to a server that is now a
            // replica.
            self.connector.discard(&connection).await;
        }
        outcome
    }

    /// Sends records one by one, to get a result for each.
    async fn send_each(&self, connection: &mut NumberedConnection, batch: &[Record]) -> BatchOutcome {
        let mut outcome = BatchOutcome::with_capacity(batch.len());
        for record in batch {
            let result = match outcome.last() {
                Some(Err(failure @ DeliveryFailure::Unreachable(_))) => Err(DeliveryFailure::clone(failure)),
                _ => match self.command(record) {
                    Ok(command) => {
                        let answer = connection.command(&command).await;
                        answer.map_err(|error| failure(&error)).and_then(result)
                    }
                    Err(failure) => Err(failure),
                },
            };
            outcome.push(result);
        }
        outcome
    }

    /// Builds the command of a record. Null becomes an empty argument, because Redis has no null.
    fn command(&self, record: &Record) -> Result<Cmd, DeliveryFailure> {
        let mut command = Cmd::new();
        let mut field = 0;
        for (index, text) in self.command.iter().enumerate() {
            if self.field_list == Some(index) {
                let list = record.field(field).unwrap_or_default();
                add_fields(&mut command, list).map_err(|found| {
                    DeliveryFailure::Refused(format!(
                        "command[{index}]: expected a list of fields and values, as map_to_redis_hset_args returns, found \
                         {found}"
                    ))
                })?;
            } else if index > 0 && is_template(text) {
                command.arg(record.field(field).unwrap_or_default());
                field += 1;
            } else {
                command.arg(text);
            }
        }
        Ok(command)
    }

    /// Connects, and checks that the server has the command.
    async fn check_all(&self) -> Result<(), String> {
        let mut connection = self.connector.connection().await?;
        let name = &self.command[0];
        let mut ask = redis::cmd("COMMAND");
        ask.arg("INFO").arg(name);
        match connection.command(&ask).await.and_then(Value::extract_error) {
            Ok(Value::Array(found)) if matches!(found.as_slice(), [Value::Nil]) => {
                Err(format!("command: the server has no command {name}"))
            }
            Ok(_) => Ok(()),
            // A user without permission for COMMAND INFO may still be allowed to run the command.
            Err(error) if matches!(failure(&error), DeliveryFailure::Refused(_)) => Ok(()),
            Err(error) => {
                self.connector.discard(&connection).await;
                Err(describe(&error))
            }
        }
    }
}

/// Adds the elements of a JSON array as arguments. The error describes the text.
fn add_fields(command: &mut Cmd, list: &[u8]) -> Result<(), String> {
    const SHOWN_BYTES: usize = 100;
    let found = || String::from_utf8_lossy(&list[..list.len().min(SHOWN_BYTES)]).into_owned();
    let elements: Vec<Json> = serde_json::from_slice(list).map_err(|_| found())?;
    if elements.is_empty() || elements.len() % 2 == 1 {
        return Err(found());
    }
    for element in elements {
        match element {
            Json::String(text) => command.arg(text),
            Json::Number(number) => command.arg(number.to_string()),
            Json::Bool(is_true) => command.arg(is_true.to_string()),
            Json::Null | Json::Array(_) | Json::Object(_) => return Err(found()),
        };
    }
    Ok(())
}

fn unreachable(error: &RedisError) -> DeliveryFailure {
    DeliveryFailure::Unreachable(failure(error).reason().to_owned())
}

fn result(answer: Value) -> Result<(), DeliveryFailure> {
    match answer.extract_error() {
        Ok(_) => Ok(()),
        Err(error) => Err(failure(&error)),
    }
}

impl Sink for RedisSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        Box::pin(self.send_all(batch))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.check_all())
    }
}
