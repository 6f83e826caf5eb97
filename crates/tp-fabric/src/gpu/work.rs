//! A stream of one's own: enqueue, capture into graphs, time by the GPU's events.

use super::device::Device;
use super::error::{Doing, GpuError};
use crate::collective::Stream;
use cudarc::driver::{CudaEvent, CudaGraph, CudaStream, sys};
use std::sync::Arc;

/// A stream with two events for timing.
pub struct Work {
    stream: Arc<CudaStream>,
    begin: CudaEvent,
    end: CudaEvent,
}

/// A captured graph. To be dropped before its stream's work is reused, and only when no replay is under way.
pub struct Graph {
    graph: CudaGraph,
}

// SAFETY: the driver's handles belong to no thread; whoever owns the graph uses it alone.
unsafe impl Send for Graph {}

impl Work {
    /// A new stream of this GPU.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &Device) -> Result<Self, GpuError> {
        device.bind()?;
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = || device.context().new_event(timed).doing("create an event");
        Ok(Self {
            stream: device.stream()?,
            begin: event()?,
            end: event()?,
        })
    }

    /// The stream, for collectives.
    pub fn stream(&self) -> Stream {
        Stream::from_raw(self.stream.cu_stream() as u64)
    }

    /// Captures what `enqueue` puts on the stream. `E` is whatever the caller's calls fail with.
    ///
    /// # Errors
    /// The driver's, or the first of `enqueue`; the stream is no longer capturing in any case.
    pub fn capture<E: From<GpuError>>(&self, enqueue: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).doing("begin a capture")?;
        let enqueued = enqueue();
        let graph = self
            .stream
            .end_capture(sys::CUgraphInstantiate_flags(0))
            .doing("end a capture");
        enqueued?;
        let graph = graph?.ok_or_else(|| GpuError::Config("an empty capture".to_owned()))?;
        graph.upload().doing("upload a graph")?;
        Ok(Graph { graph })
    }

    /// Enqueues a replay.
    ///
    /// # Errors
    /// The driver's.
    pub fn replay(&self, graph: &Graph) -> Result<(), GpuError> {
        graph.graph.launch().doing("launch a graph")
    }

    /// Marks the beginning of what is timed.
    ///
    /// # Errors
    /// The driver's.
    pub fn begin(&self) -> Result<(), GpuError> {
        self.begin.record(&self.stream).doing("record an event")
    }

    /// Marks its end.
    ///
    /// # Errors
    /// The driver's.
    pub fn end(&self) -> Result<(), GpuError> {
        self.end.record(&self.stream).doing("record an event")
    }

    /// Microseconds between the two marks, once the stream has reached the end mark.
    ///
    /// # Errors
    /// The driver's.
    pub fn elapsed_us(&self) -> Result<f64, GpuError> {
        let ms = self.begin.elapsed_ms(&self.end).doing("read events")?;
        Ok(f64::from(ms) * 1000.0)
    }
}
