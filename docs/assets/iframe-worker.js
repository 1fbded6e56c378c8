// The search without a server: for pages opened as files, browsers start no workers. What a worker would run, runs in a
// hidden frame. The theme's search knows this form by the name IFrameWorker.
(function () {
  "use strict"
  if (location.protocol !== "file:") return

  class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      const loaded = new Promise(resolve => this.frame.addEventListener("load", resolve, { once: true }))
      document.body.append(this.frame)
      this.ready = loaded.then(() => {
        const inner = this.frame.contentWindow
        inner.postMessage = data => this.deliver(data)
        inner.importScripts = (...urls) => urls.reduce((last, next) => last.then(() => this.load(next)), Promise.resolve())
        return this.load(url)
      })
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script")
        script.addEventListener("load", resolve)
        script.addEventListener("error", () => reject(new Error("can't load " + url)))
        script.src = new URL(url, location.href).href
        this.frame.contentDocument.head.append(script)
      })
    }

    deliver(data) {
      const event = new MessageEvent("message", { data })
      this.dispatchEvent(event)
      if (this.onmessage) this.onmessage(event)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }

  window.IFrameWorker = window.Worker = IFrameWorker
})()
