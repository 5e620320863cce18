//! The parts of Kafka connectors, actions and sources. Contained only in builds with the feature `kafka`.

use std::sync::Arc;

pub use connectors::kafka::{KafkaActionConfig, KafkaConnectorConfig, KafkaSourceConfig};
use connectors::kafka::{KafkaSink, KafkaSource};
use connectors::{BatchOutcome, BoxFuture, FieldTemplate, HealthCell, OrderGuarantee, Record, Sink};
use serde_json::Value;

use super::{Problems, SourceHandle, prefixed, read_with_secrets};

/// Kafka actions and sources share only the configuration. Each has a client with its own buffers and threads.
pub struct KafkaConnector(KafkaConnectorConfig);

impl KafkaConnector {
    pub fn new(config: &KafkaConnectorConfig) -> Result<KafkaConnector, Problems> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        config.check_options().map_err(|problem| vec![problem])?;
        Ok(KafkaConnector(config.clone()))
    }
}

pub struct KafkaTarget {
    sink: KafkaSink,
    templates: Vec<FieldTemplate>,
}

impl KafkaTarget {
    pub fn new(connector: Arc<KafkaConnector>, config: &KafkaActionConfig) -> Result<KafkaTarget, Problems> {
        Ok(KafkaTarget {
            sink: KafkaSink::new(&connector.0, config)?,
            templates: config.templates(),
        })
    }

    pub fn templates(&self) -> &[FieldTemplate] {
        &self.templates
    }
}

impl Sink for KafkaTarget {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        self.sink.send(batch)
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        self.sink.check()
    }

    fn rejection(&self) -> Option<String> {
        self.sink.rejection()
    }

    fn is_replacing_connection(&self) -> bool {
        self.sink.is_replacing_connection()
    }

    fn order(&self) -> OrderGuarantee {
        self.sink.order()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.sink.close()
    }
}

/// Creates a source. `id` appears in the log.
pub fn source(id: &str, connector: &KafkaConnector, parameters: &Value) -> Result<SourceHandle, Problems> {
    let config: KafkaSourceConfig = read_with_secrets("parameters", parameters)?;
    let health = HealthCell::for_source(id);
    let source = KafkaSource::new(&connector.0, &config, health.clone());
    Ok(SourceHandle {
        source: Arc::new(source.map_err(|problems| prefixed("parameters", problems))?),
        health,
        mqtt: None,
    })
}
