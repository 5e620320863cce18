//! The parts of the node that metrics are read from.

use std::sync::Arc;

use auth::LoginLimiter;
use axum::extract::FromRef;
use integration::Engine;
use web::answer_memory::AnswerMemory;
use web::limits::ApiCounters;
use web::logins::Logins;

use crate::access_admin::AccessAdmin;
use crate::alarms::Alarms;
use crate::app::App;
use crate::certificate_admin::CertificateAdmin;
use crate::config::NodeInfo;
#[cfg(feature = "platform")]
use crate::device_platform::DevicePlatform;
use crate::disk::DataDirectory;
use crate::log_ring::LogRing;
use crate::readiness::Readiness;
use crate::telemetry::ExportCounters;

/// The parts of the node that are measured.
pub struct MetricSources {
    pub node: Arc<NodeInfo>,
    pub readiness: Arc<Readiness>,
    pub alarms: Arc<Alarms>,
    pub log: Arc<LogRing>,
    pub net: net::ServerHandle,
    pub counters: Arc<ApiCounters>,
    pub answers: Arc<AnswerMemory>,
    pub logins: Arc<Logins>,
    pub login_limiter: Arc<LoginLimiter>,
    pub access: Arc<dyn AccessAdmin>,
    pub certificates: Option<Arc<dyn CertificateAdmin>>,
    pub data_directory: DataDirectory,
    pub exports: Arc<ExportCounters>,
    pub engine: Option<Engine>,
    #[cfg(feature = "platform")]
    pub platform: Option<DevicePlatform>,
}

impl FromRef<App> for MetricSources {
    fn from_ref(app: &App) -> MetricSources {
        MetricSources {
            node: app.part(),
            readiness: app.part(),
            alarms: app.part(),
            log: app.part(),
            net: app.part(),
            counters: app.part(),
            answers: app.part(),
            logins: app.part(),
            login_limiter: app.part(),
            access: app.part(),
            certificates: app.part(),
            data_directory: app.part(),
            exports: app.part(),
            engine: app.part(),
            #[cfg(feature = "platform")]
            platform: app.part(),
        }
    }
}
