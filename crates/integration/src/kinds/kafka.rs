//! The parts of Kafka connectors, actions and sources. Contained only in builds with the feature `kafka`.

use std::sync::Arc;

pub use connectors::kafka::{KafkaActionConfig, KafkaConnectorConfig, KafkaSourceConfig};
use connectors::kafka::{KafkaSink, KafkaSource};
use connectors::{BatchOutcome, BoxFuture, FieldTemplate, HealthCell, LoopMark, OrderGuarantee, Record, Sink};
use serde_json::Value;

use super::{Problems, SourceHandle, prefixed, read_with_secrets};

/// Kafka actions and sources share only the configuration and the loop mark. Each has a client with its own buffers
/// and threads.
pub struct KafkaConnector {
    config: KafkaConnectorConfig,
    loop_mark: LoopMark,
}

impl KafkaConnector {
    pub fn new(config: &KafkaConnectorConfig) -> Result<KafkaConnector, Problems> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        config.check_options().map_err(|problem| vec![problem])?;
        Ok(KafkaConnector {
            config: config.clone(),
            loop_mark: LoopMark::generate("kafka").map_err(|problem| vec![problem])?,
        })
    }
}

pub struct KafkaTarget {
    sink: KafkaSink,
    templates: Vec<FieldTemplate>,
}

impl KafkaTarget {
    pub fn new(connector: Arc<KafkaConnector>, config: &KafkaActionConfig) -> Result<KafkaTarget, Problems> {
        Ok(KafkaTarget {
            sink: KafkaSink::with_loop_mark(&connector.config, config, Some(connector.loop_mark.clone()))?,
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

    fn take_skipped_echoes(&self) -> u64 {
        self.sink.take_skipped_echoes()
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
    let loop_mark = Some(connector.loop_mark.clone());
    let source = KafkaSource::with_loop_mark(&connector.config, &config, health.clone(), loop_mark);
    Ok(SourceHandle {
        source: Arc::new(source.map_err(|problems| prefixed("parameters", problems))?),
        health,
        mqtt: None,
    })
}
